"""A run's own Prefect server: waited for while it lives, told of when it dies, and gone with its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from flows.operations import prefect_server
from flows.operations.prefect_server import start_for_this_process, wait_until_healthy
from flows.operations.prefect_settings import environment
from tasks.common.errors import AttendError
from tests.support import free_port

SLOW = """
import http.server, sys, time
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
time.sleep(1)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def begun(tmp_path: Path, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, "-c", *command], stdout=output, stderr=output), log


def test_a_slow_server_is_waited_for_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prefect_server, "LINE_SECONDS", 0.3)
    port = free_port()
    server, log = begun(tmp_path, SLOW, str(port))
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}/", server, log, "the test's server")
    finally:
        server.kill()
        server.wait()
    assert "waiting for the test's server to answer: " in capsys.readouterr().err


def test_a_server_that_dies_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    server, log = begun(tmp_path, "import sys; print('one'); sys.exit('no room at all')")
    with pytest.raises(
        AttendError, match=r"server\.log: the test's server ended with exit code 1 .*: one \| no room at all$"
    ):
        wait_until_healthy("http://127.0.0.1:9/", server, log, "the test's server")


OWNER = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored
from flows.operations.prefect_server import start_for_this_process
from flows.operations.prefect_settings import apply
apply(pathlib.Path(sys.argv[1]))
server = start_for_this_process(pathlib.Path(sys.argv[1]) / "logs")
server.wait()
print(server.api, flush=True)
time.sleep(600)
"""


def answers(api: str) -> bool:
    try:
        urllib.request.urlopen(f"{api}/health", timeout=5).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_the_server_ends_with_its_run_however_that_ends(tmp_path: Path, ending: signal.Signals) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        api = owner.stdout.readline().strip()
        assert answers(api)
        os.killpg(owner.pid, ending)  # as Ctrl-C does
    end = time.monotonic() + 60
    while answers(api) and time.monotonic() < end:
        time.sleep(0.1)
    assert not answers(api)


@pytest.mark.slow
def test_a_server_that_cannot_begin_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "sqlite+aiosqlite:////nowhere/prefect.db")
    with pytest.raises(AttendError, match=r"run-server-\d+\.log: Prefect's local server ended with exit code \d"):
        start_for_this_process(tmp_path / "logs").wait()


def test_the_server_of_the_users_own_profile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    assert "PREFECT_API_URL" not in environment(tmp_path / "workspace")
    profiles = 'active = "ours"\n[profiles.ours]\nPREFECT_API_URL = "http://ours/api"\n'
    (tmp_path / "profiles.toml").write_text(f'{profiles}[profiles.other]\nPREFECT_API_KEY = "k"\n')
    assert environment(tmp_path / "workspace")["PREFECT_API_URL"] == "http://ours/api"
    monkeypatch.setenv("PREFECT_PROFILE", "other")
    found = environment(tmp_path / "workspace")
    assert found["PREFECT_API_KEY"] == "k" and "PREFECT_API_URL" not in found
    monkeypatch.setenv("PREFECT_API_URL", "http://mine/api")
    assert environment(tmp_path / "workspace")["PREFECT_API_URL"] == "http://mine/api"
