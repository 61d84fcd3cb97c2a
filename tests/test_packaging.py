"""What is installed: a wheel that brings all that the program opens, and locks in which a user's part is by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.operations import service
from tasks.config.presets import presets
from tests.support import HERE, ask, free_port, run_of, small

PACKAGES = ("flows", "tasks", "models")
PREFECT_FILE = "attend_project/prefect.yaml"
Lock = dict[str, tuple[str, ...]]  # `name==version` -> its hashes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `pip install --no-deps` unpacks of the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    wheel.extractall(folder)
    return folder


def python(installed: Path, *arguments: str, cwd: Path) -> str:
    """Run Python with the installed package and this environment's libraries, and return what it prints."""
    hidden = ("PREFECT_", "MLFLOW_", "ATTEND_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment["PYTHONPATH"] = str(installed)
    done = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_packages_and_the_deployments(wheel: zipfile.ZipFile) -> None:
    files = {
        path.relative_to(HERE).as_posix()
        for package in PACKAGES
        for path in (HERE / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == files | {"attend.py", PREFECT_FILE}
    for name in packed - {PREFECT_FILE}:
        assert wheel.read(name) == (HERE / name).read_bytes(), name
    assert wheel.read(PREFECT_FILE) == (HERE / "prefect.yaml").read_bytes()


def test_a_user_is_asked_for_no_development_tool_and_for_nothing_of_an_extra(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needed = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist") or []
    asked = {name_of(line) for line in needed if "extra ==" not in line}
    assert {"torch", "prefect", "mlflow"} <= asked
    assert asked.isdisjoint(not_for_users())


def test_the_installed_package_answers_where_there_is_no_repository(installed: Path, tmp_path: Path) -> None:
    found = python(installed, "-m", "flows.commands.cli", "presets", "--json", cwd=tmp_path)
    assert set(json.loads(found)) == set(presets())
    assert "--notify" in python(installed, "-m", "flows.commands.cli", "up", "--help", cwd=tmp_path)
    script = "from pathlib import Path; from flows.operations.deploy import prefect_file; print(prefect_file(Path()))"
    assert python(installed, "-c", script, cwd=tmp_path).strip() == str(installed / PREFECT_FILE)
    (tmp_path / "prefect.yaml").touch()
    assert python(installed, "-c", script, cwd=tmp_path).strip() == "prefect.yaml"


def test_prefect_finds_the_flow_of_every_deployment(installed: Path, tmp_path: Path) -> None:
    content = yaml.safe_load((installed / PREFECT_FILE).read_text(encoding="utf-8"))
    entrypoints = sorted({deployment["entrypoint"] for deployment in content["deployments"]})
    script = (
        "import inspect, json, sys; from prefect.flows import load_flow_from_entrypoint\n"
        "flows = [load_flow_from_entrypoint(name, use_placeholder_flow=False) for name in sys.argv[1:]]\n"
        "print(json.dumps([[flow.name, inspect.getfile(flow.fn)] for flow in flows]))"
    )
    found = json.loads(python(installed, "-c", script, *entrypoints, cwd=tmp_path))
    assert [name for name, _ in found] == ["caption", "evaluate", "attend"]
    assert all(Path(file).is_relative_to(installed) for _, file in found)


@pytest.mark.slow
def test_up_runs_what_the_wheel_deploys(installed: Path, tmp_path: Path) -> None:
    workspace, port, mlflow_port = tmp_path / "workspace", free_port(), free_port()
    config = small(workspace).model_dump(mode="json", exclude={"data": {"path"}})
    (tmp_path / "small.yaml").write_text(json.dumps(config), encoding="utf-8")
    flags = ["--workspace", str(workspace)]
    ports = ["--port", str(port), "--mlflow-port", str(mlflow_port)]
    python(installed, "-m", "flows.commands.cli", "up", "small.yaml", *flags, *ports, cwd=tmp_path)
    try:
        found = service.running_service(workspace)
        assert found is not None
        deployed = {row["name"]: row for row in ask(f"{found.api}/deployments/filter", {})}
        assert run_of(found.api, deployed["nightly"]["id"])["state"]["name"] == "Completed"
        assert run_of(found.api, deployed["evaluation"]["id"])["state"]["name"] == "Completed"
    finally:
        python(installed, "-m", "flows.commands.cli", "down", *flags, cwd=tmp_path)


def test_the_locks_agree_and_name_no_address() -> None:
    users, developers = lock("requirements.lock"), lock("requirements-dev.lock")
    assert users.items() <= developers.items()
    assert all(hashes for hashes in developers.values())
    locked = {name_of(line) for line in users}
    assert {name_of(line) for line in project()["dependencies"]} <= locked
    assert locked.isdisjoint(not_for_users())
    assert not_for_users() <= {name_of(line) for line in developers}


def lock(name: str) -> Lock:
    """Read a lock; what is neither a requirement nor a hash is refused."""
    found: Lock = {}
    for line in (HERE / name).read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        assert re.fullmatch(r"[a-z0-9._-]+==\S+( ; [^:]+?)?( +--hash=sha256:[0-9a-f]{64})*\s*", line), line[:100]
        requirement, *hashes = line.split("--hash=")
        found[requirement.strip()] = tuple(digest.strip() for digest in hashes)
    return found


def not_for_users() -> set[str]:
    """Return the packages that only an extra or the development of this program needs."""
    extras = [line for lines in project()["optional-dependencies"].values() for line in lines]
    return {name_of(line) for line in [*extras, *pyproject()["dependency-groups"]["dev"]]}


def name_of(requirement: str) -> str:
    """Return the name of the package that a requirement asks for."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def project() -> Any:
    return pyproject()["project"]


def pyproject() -> dict[str, Any]:
    return tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))
