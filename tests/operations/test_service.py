"""`attend up`: a real server, worker and deployments on this machine, a run by them, and nothing left after `down`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.operations import service
from flows.operations.flow_runs import unfinished_runs
from tasks.common.ports import is_listening
from tasks.mlflow_store import tracking
from tests.support import HERE, STAGES, ask, free_port, run_of, small


def attend(*arguments: str, project: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    command = [sys.executable, "-m", "flows.commands.cli", *arguments]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with this project's prefect.yaml, whose deployments are of a small config."""
    for name in ("flows", "tasks", "models"):
        (tmp_path / name).symlink_to(HERE / name)
    config = small(tmp_path / "workspace").model_dump(mode="json", exclude={"data": {"path"}})
    (tmp_path / "small.yaml").write_text(json.dumps(config))
    text = (HERE / "prefect.yaml").read_text()
    assert "active: true" not in text  # nothing is scheduled before a person names a config
    (tmp_path / "prefect.yaml").write_text(text.replace("preset: demo", "preset: small.yaml"))
    return tmp_path


@pytest.mark.slow
def test_up_runs_what_is_deployed_and_down_stops_it(project: Path) -> None:
    workspace, port, mlflow_port = project / "workspace", free_port(), free_port()
    flags = ["--workspace", str(workspace)]
    said = attend("up", *flags, "--port", str(port), "--mlflow-port", str(mlflow_port), project=project)
    try:
        assert f"http://127.0.0.1:{port}" in said
        found = service.running_service(workspace)
        assert found is not None and found.mlflow == f"http://127.0.0.1:{mlflow_port}"
        names = {row["name"]: row["id"] for row in ask(f"{found.api}/deployments/filter", {})}
        assert set(names) == {"nightly", "extraction", "extraction-on-a-cluster", "evaluation", "captions"}
        (automation,) = ask(f"{found.api}/automations/filter", {})
        assert automation["name"] == "attend-zombies"
        for expected in ("Completed", "Cached"):
            run = run_of(found.api, names["nightly"])
            assert run["state"]["name"] == expected, run["state"]
        assert "nothing to do: every stage is fresh; saved: 60 pictures" in run["state"]["message"]
        artifacts = {row["key"]: row for row in ask(f"{found.api}/artifacts/latest/filter", {})}
        assert {"plan", "grids", "scores", "mlflow-run"} <= set(artifacts)
        assert [row["stage"] for row in json.loads(artifacts["plan"]["data"])][-1] == "register"
        assert f"http://127.0.0.1:{mlflow_port}/#/runs/" in artifacts["mlflow-run"]["data"]
        assert len(cached_tasks(found.api, run["id"])) == len(STAGES)
        assert run_of(found.api, names["evaluation"])["state"]["type"] == "COMPLETED"
        # A run from the command line goes to the server that is up.
        attend("run", "small.yaml", "evaluation.beam=1", project=project)
        assert len(ask(f"{found.api}/flow_runs/filter", {"flow_runs": {"name": {"any_": ["small"]}}})) == 4
    finally:
        attend("down", *flags, project=project)
    assert service.running_service(workspace) is None
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    client = tracking.connect(workspace)
    assert len(client.search_model_versions()) == 2


@pytest.mark.slow
def test_a_second_up_deploys_what_changed_and_makes_nothing_twice(project: Path) -> None:
    workspace = project / "workspace"
    shutil.copyfile(HERE / "prefect.yaml", project / "prefect.yaml")
    flags = ["--workspace", str(workspace), "--port", str(free_port()), "--mlflow-port", str(free_port())]

    text = ""

    def up(*arguments: str) -> tuple[str, dict[str, Any]]:
        nonlocal text
        text = attend("up", *arguments, *flags, project=project)
        found = service.running_service(workspace)
        assert found is not None
        return found.api, {row["name"]: row for row in ask(f"{found.api}/deployments/filter", {})}

    api, _ = up()
    webhook = next(row for row in ask(f"{api}/block_types/filter", {}) if row["slug"] == "custom-webhook")
    schema = ask(f"{api}/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [webhook["id"]]}}})[0]
    block = {"name": "phone", "data": {"name": "phone", "url": "http://127.0.0.1:9"}, "block_type_id": webhook["id"]}
    made = ask(f"{api}/block_documents/", {**block, "block_schema_id": schema["id"]})
    pool = urllib.request.Request(
        f"{api}/work_pools/attend",
        json.dumps({"concurrency_limit": 3}).encode(),
        {"Content-Type": "application/json"},
        method="PATCH",
    )
    urllib.request.urlopen(pool, timeout=30).close()
    attend("down", *flags[:2], project=project)
    changed = (project / "prefect.yaml").read_text().replace("every stage that is stale", "changed by hand")
    (project / "prefect.yaml").write_text(changed)
    try:
        api, deployed = up("small.yaml", "--notify", "custom-webhook/phone")
        assert deployed["nightly"]["description"].startswith("changed by hand")
        active = {name for name, row in deployed.items() if any(item["active"] for item in row["schedules"])}
        assert active == {"nightly", "extraction", "evaluation"}
        assert f"nightly: every day at 02:00 UTC ({project / 'small.yaml'})" in text
        assert "extraction: every hour at 30 minutes past" in text and "evaluation: every Sunday at 06:00 UTC" in text
        assert "captions: not scheduled" in text
        assert deployed["extraction-on-a-cluster"]["parameters"]["preset"] == str(project / "small.yaml")
        assert deployed["nightly"]["parameters"] == {"preset": str(project / "small.yaml")}
        assert "attend" in deployed["captions"]["tags"]
        with urllib.request.urlopen(f"{api}/work_pools/attend", timeout=30) as answer:
            assert json.load(answer)["concurrency_limit"] == 3
        automations = {row["name"]: row for row in ask(f"{api}/automations/filter", {})}
        assert set(automations) == {"attend-zombies", "attend-failed", "attend-never-came", "attend-drift"}
        assert len(ask(f"{api}/automations/filter", {})) == 4
        assert automations["attend-failed"]["actions"][0]["block_document_id"] == made["id"]
    finally:
        attend("down", *flags[:2], project=project)


class Webhook:
    """A server that remembers what is posted to it."""

    def __init__(self) -> None:
        heard = self.heard = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                heard.append(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def make_block(api: str, url: str) -> None:
    """Make a notification block that posts to a URL."""
    webhook = next(row for row in ask(f"{api}/block_types/filter", {}) if row["slug"] == "custom-webhook")
    schema = ask(f"{api}/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [webhook["id"]]}}})[0]
    data = {"name": "recorder", "url": url, "json_data": {"subject": "{{subject}}", "body": "{{body}}"}}
    block = {"name": "recorder", "data": data, "block_type_id": webhook["id"], "block_schema_id": schema["id"]}
    ask(f"{api}/block_documents/", block)


def begin(api: str, workspace: Path) -> str:
    """Begin a run of the deployment `nightly`, wait until it has written a checkpoint, and return its id."""
    began = time.time()
    (deployment,) = ask(f"{api}/deployments/filter", {"deployments": {"name": {"any_": ["nightly"]}}})
    made = ask(f"{api}/deployments/{deployment['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    end = time.monotonic() + 300
    while time.monotonic() < end:
        state = state_of(api, made["id"])
        assert state["type"] in ("SCHEDULED", "PENDING", "RUNNING"), state
        written = (path.stat().st_mtime for path in checkpoints(workspace))
        if state["type"] == "RUNNING" and max(written, default=0) > began:
            return str(made["id"])
        time.sleep(1)
    raise AssertionError(state)


def checkpoints(workspace: Path) -> list[Path]:
    return list((workspace / "artifacts" / "train").glob("*/.checkpoint.pt"))


def service_groups(workspace: Path) -> list[int]:
    """The process groups of the service now: the worker's is another one after it was restarted."""
    return list(json.loads((workspace / "prefect" / "service.json").read_text())["groups"])


def state_of(api: str, run: str) -> dict[str, Any]:
    return dict(ask(f"{api}/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})[0]["state"])


@pytest.mark.slow
def test_a_run_survives_down_and_up_without_an_alarm(project: Path) -> None:
    """And one whose processes were all killed is ended at once: it holds nobody's place."""
    config = json.loads((project / "small.yaml").read_text())
    config["training"] |= {"epochs": 5000, "patience": 5000}
    (project / "small.yaml").write_text(json.dumps(config))
    workspace, webhook = project / "workspace", Webhook()
    flags = ["--workspace", str(workspace), "--port", str(free_port()), "--mlflow-port", str(free_port())]

    def up(*arguments: str) -> service.Service:
        attend("up", "small.yaml", *arguments, *flags, project=project)
        found = service.running_service(workspace)
        assert found is not None
        return found

    try:
        make_block(up().api, webhook.address)
        attend("down", *flags[:2], project=project)
        found = up("--notify", "custom-webhook/recorder")
        first = begin(found.api, workspace)
        began = time.monotonic()
        said = attend("down", *flags[:2], project=project)
        assert ": stopped; the next run continues where it stopped" in said and time.monotonic() - began < 90
        (checkpoint,) = checkpoints(workspace)  # of the last step
        assert time.time() - checkpoint.stat().st_mtime < time.monotonic() - began
        found = up("--notify", "custom-webhook/recorder")
        assert state_of(found.api, first)["type"] == "CANCELLED"
        second = begin(found.api, workspace)  # it is not cancelled for the first one's sake
        runs = tracking.connect(workspace).search_runs(["1"])
        assert sum("mlflow.parentRunId" not in run.data.tags for run in runs) == 1  # it went on in the same run
        assert webhook.heard == []
        # Worker and flow killed together: the supervisor ends the run, and says so.
        worker = found.groups[-1]
        engine = next(run.process for run in unfinished_runs(found.api) if run.id == second)
        assert engine is not None
        os.killpg(worker, signal.SIGKILL)
        os.kill(engine, signal.SIGKILL)
        end = time.monotonic() + 60
        while state_of(found.api, second)["type"] != "CRASHED":
            assert time.monotonic() < end
            time.sleep(1)
        third = begin(found.api, workspace)
        assert len(webhook.heard) == 1 and "killed" in webhook.heard[0], webhook.heard
        # Everything killed: `up` stops what is left, and ends the run.
        engine = next(run.process for run in unfinished_runs(found.api) if run.id == third)
        assert engine is not None
        os.kill(found.process, signal.SIGKILL)
        worker = service_groups(workspace)[-1]
        os.killpg(worker, signal.SIGKILL)
        os.kill(engine, signal.SIGKILL)
        found = up("--notify", "custom-webhook/recorder")
        assert state_of(found.api, third)["type"] == "CANCELLED"
        begin(found.api, workspace)
        assert len(webhook.heard) == 1
    finally:
        attend("down", *flags[:2], project=project)


@pytest.mark.slow
def test_up_that_is_interrupted_leaves_nothing(project: Path) -> None:
    workspace, port = project / "workspace", free_port()
    command = [sys.executable, "-m", "flows.commands.cli", "up", "--workspace", str(workspace), "--port", str(port)]
    command += ["--mlflow-port", str(free_port())]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # the tests may run where it is ignored
    with subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True, preexec_fn=heard) as begun:  # noqa: PLW1509
        while not is_listening(port):
            assert begun.poll() is None and service.running_service(workspace) is None
            time.sleep(0.1)
        begun.send_signal(signal.SIGINT)
        _, text = begun.communicate(timeout=120)
    assert begun.returncode not in (0, None) and "Traceback" not in text
    assert not service.is_locked(workspace) and not is_listening(port)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_in_the_foreground_it_ends_with_its_service(project: Path, ends: str) -> None:
    workspace, port = project / "workspace", free_port()
    command = [sys.executable, "-m", "flows.commands.cli", "up", "--foreground", "--workspace", str(workspace)]
    command += ["--port", str(port), "--mlflow-port", str(free_port())]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as begun:
        assert begun.stdout is not None and "Prefect: " in begun.stdout.readline()
        found = service.running_service(workspace)
        assert found is not None
        if ends == "stopped":
            begun.terminate()
        else:
            os.kill(found.process, signal.SIGKILL)
        out, err = begun.communicate(timeout=150)
    if ends == "stopped":
        assert begun.returncode == 0 and out.splitlines()[-1] == "stopped", err
        assert not is_listening(port)
    else:
        assert begun.returncode == 1 and "service.log: the service has ended" in err and "Traceback" not in err
        attend(
            "up", "--workspace", str(workspace), "--port", str(port), "--mlflow-port", str(free_port()), project=project
        )
        attend("down", "--workspace", str(workspace), project=project)
    assert not service.is_locked(workspace)


@pytest.mark.parametrize("manager", ["user", "system"])
def test_the_unit_is_one_that_systemd_accepts(tmp_path: Path, manager: str) -> None:
    folder = tmp_path / 'a "100 %" $HOME folder'
    folder.mkdir()
    text = attend("up", "--systemd", manager, "--workspace", str(folder / "workspace"), project=folder)
    assert not (folder / "workspace").exists()  # nothing is started
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    started = lines["ExecStart"].replace("%%", "%").replace("$$", "$")
    assert shlex.split(started)[1:5] == ["up", "--foreground", "--workspace", str(folder / "workspace")]
    assert ("User" in lines) == (manager == "system")
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd")
    unit = tmp_path / "attend.service"
    unit.write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", f"--{manager}", str(unit)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    verified = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert verified.returncode == 0 and "attend.service" not in verified.stderr, verified.stderr


def cached_tasks(api: str, run: str) -> list[dict[str, Any]]:
    """The tasks of a run that ended as `Cached`, with the reason; the server writes them down in batches."""
    end = time.monotonic() + 60
    while True:
        tasks = ask(f"{api}/task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [run]}}})
        cached = [task for task in tasks if task["state"]["name"] == "Cached"]
        if len(cached) == len(STAGES) or time.monotonic() > end:
            assert all("fresh: " in task["state"]["message"] for task in cached)
            return cached
        time.sleep(1)
