"""A Prefect server on this machine: started, waited for as long as its process lives, and stopped."""

from __future__ import annotations

import atexit
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tasks.common.errors import AttendError
from tasks.common.progress import Stopwatch, lasting, say

LINE_SECONDS = 15.0  # between two lines that say what is waited for
_STOP_SECONDS = 5.0
_LAST_LINES = 5  # of the log of a server that died


@dataclass(frozen=True)
class LocalServer:
    """A server that was started. address: of the server, without `/api`. log: the file of its output."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def api(self) -> str:
        return f"{self.address}/api"

    def wait(self) -> None:
        """Wait until it answers; AttendError, with the last lines of its log, where it dies before."""
        wait_until_healthy(f"{self.api}/health", self.process, self.log, "Prefect's local server")


def start_for_this_process(logs: Path) -> LocalServer:
    """Start a server without pages, for as long as this process lives, however that ends.

    logs: the folder of its log. It takes seconds to answer: `wait` before it is used.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"run-server-{os.getpid()}.log"
    # -P and the path: a folder of somebody's that has a package `flows` of its own must not stand for ours.
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The port is taken here and handed over, so that nobody else can have it meanwhile.
    with socket.socket() as listener, log.open("wb") as output:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.operations.prefect_server", str(listener.fileno())],
            stdin=subprocess.PIPE,  # its end tells the server that this process has ended
            stdout=output,
            stderr=output,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for this process, which then tells the server how its run ended
            env={**os.environ, "PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PYTHONPATH": path},
        )
    atexit.register(_stop, server, log)  # not sooner: Prefect sends the last of its logs when the process ends
    return LocalServer(address, server, log)


def _stop(server: subprocess.Popen[bytes], log: Path) -> None:
    died = server.poll() is not None
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    if not died:  # else it says why
        log.unlink(missing_ok=True)


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path, name: str) -> None:
    """Wait until `url` answers, as long as the server's process lives; a line now and then says so.

    Raises AttendError with the last lines of its log where it has died.
    """
    watch, reported = Stopwatch(), 0.0
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy stands before this machine
    while server.poll() is None:
        try:
            direct.open(url, timeout=5).close()
            return
        except (OSError, http.client.HTTPException) as error:
            last_error = error
        if watch.seconds() - reported > LINE_SECONDS:
            reported = watch.seconds()
            say(f"waiting for {name} to answer: {lasting(reported)} so far ({last_error}); its log is {log}")
        time.sleep(0.1)
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = " | ".join(line.strip() for line in lines[-_LAST_LINES:]) or "it wrote nothing"
    raise AttendError(f"{log}: {name} ended with {server.returncode} before it answered: {last}")


def _serve(listener: socket.socket) -> None:
    """Be the server, until SIGTERM or the end of the process that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app

    uvicorn.Server(uvicorn.Config(create_app(final=True), log_level="error", lifespan="on")).run(sockets=[listener])


def _end_with_parent() -> None:
    """Stop the server once its standard input has ended: whoever started it is gone."""
    while os.read(0, 4096):  # not sys.stdin, whose lock a thread must not hold where Python ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os._exit(1)  # it does not end by itself


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
