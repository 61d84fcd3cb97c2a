"""Servers that tests and benches start for themselves: any that answers at a port, and Debian's PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.common.ports import is_listening
from tests.support import free_port

POSTGRESQL = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)  # Debian's programs


def wait(happened: Callable[[], bool], seconds: float, log: Path) -> None:
    """Wait until something has happened; AssertionError, with the end of a log, where it does not."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, log.read_text(errors="replace")[-3000:]
        time.sleep(0.5)


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process group of its own; the block begins when it answers at the port."""
    with log.open("ab") as output:
        server = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True, **options)
    try:
        wait(lambda: is_listening(port), 120, log)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(30)
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextlib.contextmanager
def postgresql(*databases: str) -> Iterator[str]:
    """Run a PostgreSQL of its own with empty databases; yield `USER@HOST:PORT`, for the address of each."""
    assert POSTGRESQL is not None, "there is no PostgreSQL: apt-get install postgresql"
    user: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="attend-postgresql-") as folder:
        if os.geteuid() == 0:  # as whom it refuses to run
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
            user = {"user": account.pw_uid, "group": account.pw_gid}
        call: dict[str, Any] = {"stdout": subprocess.DEVNULL, "cwd": folder, **user}
        port, data = free_port(), str(Path(folder) / "data")
        subprocess.run([POSTGRESQL / "initdb", "-D", data, "-U", "attend", "--auth=trust"], check=True, **call)
        serve = [str(POSTGRESQL / "postgres"), "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1"]
        with running(serve, port, Path(folder) / "log", cwd=folder, **user):
            for name in databases:
                where = ["-h", "127.0.0.1", "-p", str(port), "-U", "attend"]
                subprocess.run([POSTGRESQL / "createdb", *where, name], check=True, **call)
            yield f"attend@127.0.0.1:{port}"
