"""Caption the same pictures with every interface of a registered model, without access to this repository.

    python -m bench.conformance.interfaces PRESET_OR_YAML [section.field=value ...]

Uses the first 20 pictures of the evaluated split. One fresh environment has only the registered model's requirements:
`load_model`, `mlflow models predict` and `mlflow models serve` run there. Another has this project's wheel: `attend
serve` and `attend caption` run there. All must give the captions that `evaluate` wrote.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq

from bench.pipelines import planned
from bench.speed.serving import running
from tasks.config.schema import load
from tasks.data.manifest import files_by_digest
from tasks.evaluation.caption_and_score import PREDICTIONS
from tasks.mlflow_store import tracking
from tasks.mlflow_store.registration_record import read_registration

PICTURES = 20
_HERE = Path(__file__).resolve().parents[2]
_UV = Path(sys.executable).with_name("uv")


def main() -> None:
    config = load(sys.argv[1], sys.argv[2:])
    artifacts = planned(config).by_kind
    registered = read_registration(artifacts["register"].path)
    files = files_by_digest(artifacts["ingest"].path, config.data)
    rows = pq.read_table(artifacts["evaluate"].path / PREDICTIONS).to_pylist()[:PICTURES]
    photographs = [files[row["digest"]].read_bytes() for row in rows]
    expected = [row["caption"] for row in rows]
    tracking.connect(config.workspace)
    with tempfile.TemporaryDirectory(prefix="attend-ways-") as scratch:
        results = ways(registered["uri"], config.workspace, photographs, Path(scratch))
    print(f"{registered['uri']}: {len(expected)} pictures\n\n| way | the same as evaluate |\n| --- | --- |")
    for name, captions in results.items():
        same = sum(one == other for one, other in zip(captions, expected, strict=True))
        print(f"| {name} | {same} of {len(expected)} |")
    if any(captions != expected for captions in results.values()):
        raise SystemExit("they do not say the same")


def ways(uri: str, workspace: Path, photographs: list[bytes], scratch: Path) -> dict[str, list[str]]:
    """Return the captions of the photographs by interface."""
    import mlflow

    own = environment(scratch / "own", ["-r", str(mlflow.pyfunc.get_model_dependencies(uri))])
    ours = environment(scratch / "attend", ["--require-hashes", "-r", str(_HERE / "requirements.lock")])
    wheel = build(scratch)
    subprocess.run([_UV, "pip", "install", "--quiet", "--python", ours / "python", "--no-deps", wheel], check=True)
    body = json.dumps({"inputs": [base64.b64encode(photograph).decode() for photograph in photographs]})
    (scratch / "request.json").write_text(body, encoding="utf-8")
    for index, photograph in enumerate(photographs):
        (scratch / f"{index:02d}").write_bytes(photograph)
    names = [str(scratch / f"{index:02d}") for index in range(len(photographs))]
    code = (
        "import json, sys, mlflow, pathlib\n"
        f"model = mlflow.pyfunc.load_model({uri!r})\n"
        "rows = model.predict({'image': [pathlib.Path(name).read_bytes() for name in sys.argv[1:]]})\n"
        "print(json.dumps([row['caption'] for row in rows]))"
    )
    result = {"load_model": json.loads(run([own / "python", "-c", code, *names], workspace, scratch).splitlines()[-1])}
    predict: list[str | Path] = [
        own / "mlflow",
        "models",
        "predict",
        "-m",
        uri,
        "-i",
        "request.json",
        "-o",
        "said.json",
        "-t",
        "json",
    ]
    run([*predict, "--env-manager", "local"], workspace, scratch)
    result["mlflow models predict"] = captions_of(json.loads((scratch / "said.json").read_text(encoding="utf-8")))
    servers = {
        "mlflow models serve": [own / "mlflow", "models", "serve", "-m", uri, "--env-manager", "local"],
        "attend serve": [ours / "attend", "serve", "--model", uri, "--workspace", str(workspace)],
    }
    for name, command in servers.items():
        with running([str(part) for part in command], workspace, scratch) as port:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/invocations", body.encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=120) as answer:
                result[name] = captions_of(json.load(answer))
    caption: list[str | Path] = [
        ours / "attend",
        "caption",
        *names,
        "--model",
        uri,
        "--workspace",
        str(workspace),
        "--json",
    ]
    result["attend caption"] = captions_of(json.loads(run(caption, workspace, scratch)))
    return result


def environment(folder: Path, packages: list[str]) -> Path:
    """Create an environment and return its folder of programs."""
    subprocess.run([_UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    subprocess.run([_UV, "pip", "install", "--quiet", "--python", folder / "bin" / "python", *packages], check=True)
    return folder / "bin"


def build(scratch: Path) -> Path:
    """Build this project's wheel and return its path."""
    source = scratch / "source"
    keep = ("flows", "tasks", "models")
    for name in keep:
        shutil.copytree(_HERE / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "prefect.yaml"):
        shutil.copy(_HERE / name, source / name)
    build: list[str | Path] = [_UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*build, "--out-dir", scratch / "wheel", source], check=True)
    (wheel,) = (scratch / "wheel").glob("*.whl")
    return wheel


def run(command: list[str | Path], workspace: Path, folder: Path) -> str:
    """Return the standard output of a command that runs without access to this project."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"MLFLOW_TRACKING_URI": tracking.tracking_uri(workspace), "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]}: {done.stderr}")
    return done.stdout


def captions_of(answer: object) -> list[str]:
    rows = answer["predictions"] if isinstance(answer, dict) else answer
    assert isinstance(rows, list)
    return [row["caption"] for row in rows]


if __name__ == "__main__":
    main()
