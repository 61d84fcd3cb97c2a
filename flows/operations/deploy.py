"""The objects that `attend up` creates on Prefect's server: a work pool, deployments and automations."""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from tasks.common.errors import AttendError

POOL = "attend"
PREFECT = (sys.executable, "-m", "prefect", "--no-prompt")
WORKER = [*PREFECT, "worker", "start", "--pool", POOL, "--type", "process", "--limit", "1"]
_ZOMBIES, _NOTIFICATIONS = (Path(__file__).with_name(f"{name}.yaml") for name in ("zombies", "notifications"))
_ROOT = Path(__file__).resolve().parents[2]  # the folder of the packages: the repository, or the installation


@dataclass(frozen=True)
class ServiceOptions:
    """The options of `attend up`.

    project: the folder in which the flows run; a prefect.yaml there replaces the package's. config: the preset or YAML
    file whose schedules are active; if empty, the deployments are as in prefect.yaml. notify: `TYPE/NAME` of the
    Prefect block that is notified of failures; empty for none. port, mlflow_port: of Prefect's server and of MLflow's
    pages. worker_only: start only a worker, for a server that is already running.
    """

    project: str
    workspace: str
    port: int
    mlflow_port: int
    config: str = ""
    notify: str = ""
    worker_only: bool = False


def prefect_file(project: Path) -> Path:
    """Return the prefect.yaml of a folder, or the package's if the folder has none.

    Raises AttendError if the packages were copied without it.
    """
    folders = (project, _ROOT / "attend_project", _ROOT)  # in a wheel, and in the repository
    for path in (folder / "prefect.yaml" for folder in folders):
        if path.is_file():
            return path
    raise AttendError(
        f"{project}: has no prefect.yaml, and none is beside the program: copy that of the repository there"
    )


def check_project(project: Path) -> None:
    """Raise AttendError for a folder from which flows cannot run.

    Prefect imports flows with the folder first on Python's path, so other modules of the same names would hide them.
    """
    if not project.is_dir():
        raise AttendError(f"--project: {project}: no such folder")
    for name in ("flows", "tasks", "models"):
        spec = importlib.machinery.PathFinder.find_spec(name, [str(project)])
        if spec is not None and spec.origin and not Path(spec.origin).samefile(_ROOT / name / "__init__.py"):
            raise AttendError(
                f"{spec.origin}: hides the module `{name}` of this program from its flows: "
                "give --project another folder"
            )


def deploy(options: ServiceOptions, env: dict[str, str]) -> None:
    """Create Prefect's work pool and automations as needed, and deploy the current prefect.yaml.

    env: the environment variables with the server's address, for the subprocess that deploys. Exits if that fails,
    after an error on standard error.
    """
    command = [sys.executable, "-m", "flows.operations.deploy", json.dumps(asdict(options))]
    if subprocess.run(command, cwd=options.project, env=env, check=False).returncode != 0:
        raise SystemExit(1)


def _deploy(options: ServiceOptions) -> None:
    """Deploy on the server in this process's environment."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.events.schemas.automations import AutomationCore
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    deployments = prefect_file(Path(options.project))
    if options.config:
        content = _with_config(deployments, options.config)
        deployments = logs_of(Path(options.workspace)) / "deployments.yaml"
        deployments.write_text(content, encoding="utf-8")
    with get_client(sync_client=True) as client:
        zombies = yaml.safe_load(_ZOMBIES.read_text(encoding="utf-8"))
        automations = [zombies]
        if options.notify:
            block = _block_id(client, options.notify, f"http://127.0.0.1:{options.port}")
            automations += yaml.safe_load_all(_NOTIFICATIONS.read_text(encoding="utf-8").replace("BLOCK", block))
        with contextlib.suppress(ObjectAlreadyExists):
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
        command = [*PREFECT, "deploy", "--all", "--prefect-file", str(deployments)]
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(f"`prefect deploy --all --prefect-file {deployments}` failed: see above")
        for automation in automations:
            existing = client.read_automations_by_name(automation["name"])
            if existing and automation is zombies:
                continue
            for old in existing:  # it may name another block
                client.delete_automation(old.id)
            client.create_automation(AutomationCore.model_validate(automation))


def _with_config(deployments: Path, config: str) -> str:
    """Return prefect.yaml with a config in place of `preset: demo`, and the schedules of those deployments activated.

    The schedule of a deployment with overrides is not activated, because the overrides have to be edited first.
    """
    content = yaml.safe_load(deployments.read_text(encoding="utf-8"))
    for deployment in content["deployments"]:
        parameters = deployment.get("parameters") or {}
        if parameters.get("preset") == "demo":
            parameters["preset"] = config
            for schedule in deployment.get("schedules") or () if "overrides" not in parameters else ():
                schedule["active"] = True
    return yaml.safe_dump(content, sort_keys=False)


def _block_id(client: Any, name: str, address: str) -> str:
    """Return the id of the Prefect block `TYPE/NAME`. Exits if there is none."""
    from prefect.exceptions import ObjectNotFound

    kind, _, block = name.partition("/")
    try:
        return str(client.read_block_document_by_name(block, kind).id)
    except ObjectNotFound:
        raise SystemExit(
            f"--notify: {name}: no such block: `attend up` without --notify, make it at {address}/blocks (Slack, "
            "e-mail, a webhook, ...), then `attend down` and this again"
        ) from None


def logs_of(workspace: Path) -> Path:
    """Return the folder for the logs of a workspace's servers."""
    return workspace / "prefect" / "logs"


if __name__ == "__main__":
    _deploy(ServiceOptions(**json.loads(sys.argv[1])))
