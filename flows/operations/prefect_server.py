"""Start a Prefect server on this machine, wait until it answers, and stop it."""

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tasks.common.errors import AttendError
from tasks.common.files import free_name
from tasks.common.log import log
from tasks.common.progress import duration

LINE_SECONDS = 15.0  # between two progress lines while waiting for a server
_STOP_SECONDS = 5.0
# Messages in the log of a server that cannot upgrade its database.
_HALF_MADE = ("already exists", "duplicate column", "no such table")
_LAST_LINES = 5  # the number of lines of the log to show if a server dies


@dataclass(frozen=True)
class LocalServer:
    """A server started by this process.

    address: its URL, without `/api`. log: the file of its output, which begins at the byte `log_start`. name: for
    messages.
    """

    address: str
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int = 0
    name: str = "Prefect's local server"

    @property
    def api(self) -> str:
        """Return the URL of the server's API."""
        return f"{self.address}/api"

    def wait(self) -> None:
        """Wait until the server answers. Raises AttendError, with the last lines of its log, if it dies before."""
        wait_until_healthy(f"{self.api}/health", self.process, self.log, self.name)


def start_for_this_process(logs: Path) -> LocalServer:
    """Start a server without web pages that stops with this process, even if this process is killed.

    logs: the folder for its log. The server takes seconds to answer: call `wait` before using it.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log_file = logs / f"run-server-{os.getpid()}.log"
    # -P and PYTHONPATH, so that a package `flows` in the current folder is not imported in place of this one.
    python_path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    # The port is bound here and handed over, so that no other program can take it in between.
    with socket.socket() as listener, log_file.open("wb") as output:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.operations.prefect_server", str(listener.fileno())],
            stdin=subprocess.PIPE,  # closes when this process ends, which stops the server
            stdout=output,
            stderr=output,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C reaches this process only, which then reports the run's end to the server
            env={**os.environ, "PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PYTHONPATH": python_path},
        )
    atexit.register(_stop, server, log_file)  # only at exit, because Prefect sends its last logs then
    return LocalServer(address, server, log_file)


def _stop(server: subprocess.Popen[bytes], log_file: Path) -> None:
    """End the server, and remove its log unless it had died."""
    died = server.poll() is not None
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    if not died:  # the log of a server that died shows the reason
        log_file.unlink(missing_ok=True)


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log_file: Path, name: str) -> None:
    """Wait until `url` answers, and print a progress line every LINE_SECONDS.

    name: the server's, for messages. Raises AttendError, with the last lines of the log, if the server's process ends
    before.
    """
    started = reported = time.monotonic()
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({})
    )  # without proxies: the server is on this machine
    while server.poll() is None:
        try:
            opener.open(url, timeout=5).close()
            return
        except (OSError, http.client.HTTPException):
            pass  # not ready yet
        if time.monotonic() - reported > LINE_SECONDS:
            reported = time.monotonic()
            log.info(f"waiting for {name} to answer: {duration(reported - started)} so far; its log is {log_file}")
        time.sleep(0.1)
    lines = [line for line in log_file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last_lines = " | ".join(line.strip() for line in lines[-_LAST_LINES:]) or "it wrote nothing"
    raise AttendError(f"{log_file}: {name} ended with exit code {server.returncode} before it answered: {last_lines}")


def wait_or_start_again(server: LocalServer, start: Callable[[], LocalServer], workspace: Path) -> LocalServer:
    """Return the server when it answers, or a new one if the first died of a half-created database.

    start: starts the new one. Raises AttendError if the server dies for another reason.
    """
    try:
        server.wait()
        return server
    except AttendError:
        text = server.log.read_bytes()[server.log_start :].decode(errors="replace")
        if not set_aside_incomplete_database(workspace, text):
            raise
    again = start()
    again.wait()
    return again


def set_aside_incomplete_database(workspace: Path, log_text: str) -> bool:
    """Set Prefect's database aside if a server died because its creation had been interrupted; return whether it did.

    Prefect creates it in many transactions, and cannot continue if it was killed between them. Only the database in the
    workspace is touched, not one in the user's own PREFECT_HOME. log_text: the output of the server that died.
    """
    home = workspace / "prefect"
    is_incomplete = "alembic" in log_text and any(words in log_text for words in _HALF_MADE)
    if not is_incomplete or not (home / "prefect.db").exists() or Path(os.environ.get("PREFECT_HOME", home)) != home:
        return False
    for path in home.glob("prefect.db*"):
        if ".damaged" not in path.name:
            path.replace(free_name(path.with_name(f"{path.name}.damaged")))
    log.warning(f"{home / 'prefect.db'}: was not finished when it was made; set aside, and made again")
    return True


def _serve(listener: socket.socket) -> None:
    """Run the server until SIGTERM, or until the process that started it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import uvicorn
    from prefect.server.api.server import create_app

    uvicorn.Server(uvicorn.Config(create_app(final=True), log_level="error", lifespan="on")).run(sockets=[listener])


def _end_with_parent() -> None:
    """Stop the server when its standard input ends, which happens when the process that started it ends."""
    while os.read(0, 4096):  # not sys.stdin: a thread must not hold its lock when Python exits
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os._exit(1)  # SIGTERM was not enough


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
