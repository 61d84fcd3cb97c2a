"""`attend up --worker-only`: workers of Prefect's and MLflow's servers that somebody else runs, with PostgreSQL too."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.cli import refused
from tests.photographs import picture
from tests.servers import POSTGRESQL, postgresql, running, wait
from tests.support import HERE, ask, free_port, small

_PREFECT = (sys.executable, "-m", "prefect")


def clean_environment(**added: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    return {**kept, "PREFECT_SERVER_ANALYTICS_ENABLED": "false", **added}


def photographs(folder: Path, numbers: range | list[int]) -> None:
    """Write photographs with captions, and no others."""
    shutil.rmtree(folder / "images", ignore_errors=True)
    for number in numbers:
        picture(folder / "images" / f"{number}.png", number)
    rows = "\n".join(["image,caption", *(f"{number}.png,a picture of {number}" for number in numbers)])
    (folder / "captions.csv.new").write_text(rows)
    (folder / "captions.csv.new").replace(folder / "captions.csv")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with photographs, a config, and a prefect.yaml whose nightly run comes every minute."""
    photographs(tmp_path / "photos", range(40))
    data = {"adapter": "table", "path": tmp_path / "photos" / "captions.csv", "dev_share": 0.3}
    values = small(tmp_path / "workspace", data=data).model_dump(mode="json", exclude_unset=True)
    (tmp_path / "photos.yaml").write_text(yaml.safe_dump(values))
    content = yaml.safe_load((HERE / "prefect.yaml").read_text())
    content["deployments"] = content["deployments"][:1]
    content["deployments"][0]["schedules"] = [{"cron": "* * * * *", "slug": "nightly", "active": False}]
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def test_without_a_server_it_says_which_variable_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--workspace", str(tmp_path / "workspace")]
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "none"))
    assert "PREFECT_API_URL is not set: set it to the server's address" in refused(
        monkeypatch, capsys, "up", "--worker-only", *flags
    )
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    assert "does not answer" in refused(monkeypatch, capsys, "up", "--worker-only", *flags)
    assert not (tmp_path / "workspace").exists()


@pytest.mark.slow
def test_a_worker_runs_what_the_server_schedules_until_it_is_stopped(project: Path) -> None:
    port = free_port()
    env = clean_environment(PREFECT_HOME=str(project / "server"), PREFECT_API_URL=f"http://127.0.0.1:{port}/api")
    server = [*_PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with running(server, port, project / "server.log", env), worker(project, env) as begun:
        # A run of ours beside the schedule's would be cancelled by whichever came first, so the schedule's is awaited.
        completed = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
        wait(lambda: ask(f"{env['PREFECT_API_URL']}/flow_runs/filter", completed) != [], 300, project / "server.log")
        begun.terminate()
        begun.wait(300)  # it waits for the run that has begun meanwhile


@contextlib.contextmanager
def worker(project: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`attend up --worker-only`, which has deployed and takes runs, started as a script starts it in the background."""
    log = project / f"worker-{time.monotonic_ns()}.log"
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]  # shells let such commands ignore SIGINT
    command += [sys.executable, "-m", "flows.commands.cli", "up", str(project / "photos.yaml"), "--worker-only"]
    command += ["--workspace", str(project / "workspace"), "--project", str(project)]
    with log.open("ab") as output:
        begun = subprocess.Popen(command, env=env, cwd=project, stdout=output, stderr=output, start_new_session=True)
    try:
        wait(lambda: "Worker" in log.read_text() and "started" in log.read_text(), 180, log)
        yield begun
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()


@pytest.mark.slow
@pytest.mark.skipif(POSTGRESQL is None, reason="Debian's PostgreSQL is not installed")
def test_two_workers_of_servers_with_postgresql(project: Path) -> None:
    """Every minute a run; photographs come and go, a worker and the server are killed, and nothing is lost."""
    pytest.importorskip("psycopg2", reason="MLflow's driver of PostgreSQL is not installed")
    from mlflow import MlflowClient

    prefect_port, mlflow_port = free_port(), free_port()
    api, tracking = f"http://127.0.0.1:{prefect_port}/api", f"http://127.0.0.1:{mlflow_port}"
    with ExitStack() as stack:
        database = stack.enter_context(postgresql("prefect", "mlflow"))
        env = clean_environment(
            PREFECT_HOME=str(project / "server"),
            PREFECT_API_DATABASE_CONNECTION_URL=f"postgresql+asyncpg://{database}/prefect",
            PREFECT_API_URL=api,
            MLFLOW_TRACKING_URI=tracking,
        )
        server = [*_PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(prefect_port)]
        process = stack.enter_context(running(server, prefect_port, project / "server.log", env))
        ui = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(mlflow_port)]
        ui += ["--backend-store-uri", f"postgresql://{database}/mlflow"]
        ui += ["--artifacts-destination", str(project / "served"), "--workers", "1"]
        stack.enter_context(running(ui, mlflow_port, project / "mlflow.log", clean_environment()))
        mine = {name: value for name, value in env.items() if "DATABASE" not in name}
        one = stack.enter_context(worker(project, mine))
        stack.enter_context(worker(project, mine))
        client = MlflowClient(tracking)

        log = project / "server.log"
        wait(lambda: client.search_model_versions("name = 'small'") != [], 240, log)
        photographs(project / "photos", range(45))
        wait(lambda: pictures_of_last_run(project) == 45, 240, log)
        photographs(project / "photos", [number for number in range(45) if number != 7])
        os.killpg(one.pid, signal.SIGKILL)  # the other worker takes the next run
        wait(lambda: pictures_of_last_run(project) == 44, 300, log)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        photographs(project / "photos", [number for number in range(45) if number not in (7, 8)])
        stack.enter_context(running(server, prefect_port, log, env))
        wait(lambda: pictures_of_last_run(project) == 43, 420, log)
        states = [row["state_type"] for row in ask(f"{api}/flow_runs/filter", {"limit": 100})]
        assert "FAILED" not in states and states.count("COMPLETED") >= 4, states
        assert len(client.search_model_versions("name = 'small'")) >= 3


def pictures_of_last_run(project: Path) -> int:
    """The number of photographs in the metrics of the latest run that succeeded."""
    path = project / "workspace" / "metrics" / "small.prom"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("attend_pictures{")))
