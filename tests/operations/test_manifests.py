"""The Kubernetes manifests in docs/kubernetes: valid, and of commands and addresses that there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from flows.commands.cli import app
from tests.support import HERE

MANIFESTS = sorted((HERE / "docs" / "kubernetes").glob("*.yaml"))


def containers(path: Path) -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    deployments = [document for document in documents if document["kind"] == "Deployment"]
    assert deployments
    return [found for document in deployments for found in document["spec"]["template"]["spec"]["containers"]]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_valid(path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        validator.validate(document, "1.34", strict=True)


def test_the_worker_is_started_by_a_command_that_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTEND_WORKSPACE", str(tmp_path / "workspace"))
    (worker,) = containers(HERE / "docs" / "kubernetes" / "worker.yaml")
    result = CliRunner().invoke(app, worker["args"])
    assert "/photos/photos.yaml" in str(result.exception), result.output  # it is read, and is not here
    wrong = CliRunner().invoke(app, [*worker["args"], "--no-such-option"])
    assert wrong.exit_code == 2


def test_the_probes_are_addresses_of_the_server() -> None:
    code = (HERE / "flows" / "serving" / "app.py").read_text(encoding="utf-8")
    (captioner,) = containers(HERE / "docs" / "kubernetes" / "serve.yaml")
    for probe in ("readinessProbe", "livenessProbe"):
        assert f'"{captioner[probe]["httpGet"]["path"]}"' in code
