"""What `attend up` makes at Prefect's server: a work pool, the deployments of prefect.yaml, and automations."""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import yaml

from tasks.common.errors import AttendError

POOL = "attend"
PREFECT = (sys.executable, "-m", "prefect", "--no-prompt")
_NOTIFYING = ("attend-failed", "attend-never-came", "attend-drift")
_ZOMBIES, _NOTIFICATIONS = (Path(__file__).with_name(f"{name}.yaml") for name in ("zombies", "notifications"))
_ROOT = Path(__file__).resolve().parents[2]  # of the packages: the repository, or where they are installed


@dataclass(frozen=True)
class ServiceOptions:
    """The options of `attend up`.

    project: the folder that the flows run in; a prefect.yaml there replaces the package's own. config: the preset or
    YAML file whose schedules are active; empty: the deployments are made as prefect.yaml has them. notify: `TYPE/NAME`
    of the Prefect block that is told of failures; empty for none. port, mlflow_port: of Prefect's server and of
    MLflow's pages. worker_only: start a worker of a server that runs already, and no server.
    """

    project: str
    workspace: str
    port: int
    mlflow_port: int
    config: str = ""
    notify: str = ""
    worker_only: bool = False


def prefect_file(project: Path) -> Path:
    """Return the prefect.yaml of a folder, or the package's own where the folder has none.

    Raise AttendError where the packages were copied without it.
    """
    folders = (project, _ROOT / "attend_project", _ROOT)  # of the wheel, and of the repository
    for path in (folder / "prefect.yaml" for folder in folders):
        if path.is_file():
            return path
    raise AttendError(
        f"{project}: has no prefect.yaml, and none is beside the program: copy that of the repository there"
    )


def check_project(project: Path) -> None:
    """Refuse a folder from which flows cannot run.

    Prefect imports them with the folder first on Python's path, where other modules of the same names would hide them.
    """
    if not project.is_dir():
        raise AttendError(f"--project: {project}: no such folder")
    for name in ("flows", "tasks", "models"):
        found = importlib.machinery.PathFinder.find_spec(name, [str(project)])
        if found is not None and found.origin and not Path(found.origin).samefile(_ROOT / name / "__init__.py"):
            raise AttendError(
                f"{found.origin}: hides the module `{name}` of this program from its flows: "
                "give --project another folder"
            )


def deploy(options: ServiceOptions, env: dict[str, str]) -> None:
    """Create Prefect's work pool and automations where they do not exist, and deploy what prefect.yaml has now."""
    project = Path(options.project)
    if not _succeeds([*PREFECT, "work-pool", "inspect", POOL], project, env):
        _call([*PREFECT, "work-pool", "create", POOL, "--type", "process"], project, env)
    deployments = prefect_file(project)
    if options.config:
        content = _with_config(deployments, options.config)
        deployments = logs_of(Path(options.workspace)) / "deployments.yaml"
        deployments.write_text(content, encoding="utf-8")
    _call([*PREFECT, "deploy", "--all", "--prefect-file", str(deployments)], project, env)
    automations = [_ZOMBIES.read_text(encoding="utf-8")]
    if options.notify:
        block = _block_id(options.notify, f"http://127.0.0.1:{options.port}", env)
        automations += [
            text.replace("BLOCK", block) for text in _NOTIFICATIONS.read_text(encoding="utf-8").split("---\n")
        ]
    for automation in map(yaml.safe_load, automations):
        name = automation["name"]
        exists = _succeeds([*PREFECT, "automation", "inspect", name], project, env)
        if exists and name in _NOTIFYING:  # of another block, perhaps
            _call([*PREFECT, "automation", "delete", name], project, env)
        if not exists or name in _NOTIFYING:
            _call([*PREFECT, "automation", "create", "--from-json", json.dumps(automation)], project, env)


def _with_config(deployments: Path, config: str) -> str:
    """Return prefect.yaml with a config in place of `preset: demo`, and the schedules of those deployments active.

    The schedule of a deployment with overrides, which are to be edited first, stays as it is.
    """
    content = yaml.safe_load(deployments.read_text(encoding="utf-8"))
    for deployment in content["deployments"]:
        parameters = deployment.get("parameters") or {}
        if parameters.get("preset") == "demo":
            parameters["preset"] = config
            for schedule in deployment.get("schedules") or () if "overrides" not in parameters else ():
                schedule["active"] = True
    return yaml.safe_dump(content, sort_keys=False)


def _block_id(name: str, address: str, env: dict[str, str]) -> str:
    """Return the id of the Prefect block `TYPE/NAME`. Exits where there is none."""
    kind, _, block = name.partition("/")
    request = urllib.request.Request(f"{env['PREFECT_API_URL']}/block_types/slug/{kind}/block_documents/name/{block}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["id"])
    except (OSError, ValueError):
        raise SystemExit(
            f"--notify: {name}: no such block: `attend up` without --notify, make it at {address}/blocks (Slack, "
            "e-mail, a webhook, ...), then `attend down` and this again"
        ) from None


def _succeeds(command: list[str], project: Path, env: dict[str, str]) -> bool:
    """Return whether a command of Prefect's ends with exit code 0."""
    return subprocess.run(command, cwd=project, env=env, capture_output=True, check=False).returncode == 0


def _call(command: list[str], project: Path, env: dict[str, str]) -> str:
    """Run a command of Prefect's and return its output. Exits where the command fails."""
    finished = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    print(finished.stdout + finished.stderr, flush=True)
    if finished.returncode != 0:
        raise SystemExit(f"`prefect {' '.join(command[4:])}` failed: see above")
    return finished.stdout


def logs_of(workspace: Path) -> Path:
    """Return the folder for the logs of all servers of a workspace."""
    return workspace / "prefect" / "logs"
