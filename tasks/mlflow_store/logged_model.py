"""The captioner as an MLflow model: a pyfunc model logged from code, with its signature and its requirements."""

from __future__ import annotations

import importlib.util
import io
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from models.options import Runtime
from models.requests import TYPES
from tasks.captioner.copied_loader import DIGEST
from tasks.captioner.load_bundle import LoadedBundle, example, load_bundle
from tasks.common.errors import AttendError, TransientError, reason_of
from tasks.common.retries import is_transient
from tasks.mlflow_store.runs import TrainingLog
from tasks.mlflow_store.tracking import local_folder, without_credentials

if TYPE_CHECKING:
    from models.captioner import Captioner

BUNDLE = "artifacts/bundle"  # the folder of the bundle for torch in a logged model's files
_REQUIREMENTS = ("mlflow", "safetensors", "pillow", "simplejpeg", "numpy", "pandas")
_OF_TORCH, _OF_ONNX = ("torch", "torchvision"), ("onnxruntime",)


def bundle_of(runtime: str) -> str:
    """Return the name of a runtime's bundle among a logged model's artifacts."""
    return "bundle" if runtime == "torch" else runtime


def _input_of(captioner: Captioner) -> tuple[str, bytes]:
    """Return the only input column, `image` or, without a backbone, `grid`, and an example."""
    if not captioner.takes_grids:
        return "image", example()
    file = io.BytesIO()
    np.save(file, np.zeros(captioner.config["backbone"]["shape"], np.float16))
    return "grid", file.getvalue()


def log_model(run_id: str, name: str, bundles: Mapping[str, Path], captioner: Captioner) -> str:
    """Log the bundles of a captioner in a run as a pyfunc model from code, and return its `models:/m-...` address.

    name: of the model in MLflow's pages. bundles: the folder of each runtime, the preferred one first.

    MLflow installs only the packages of the preferred runtime; those of other runtimes, such as torch's several
    gigabytes, are needed only by users of these.
    """
    import mlflow

    column, content = _input_of(captioner)
    in_torch = next(iter(bundles)) == "torch"
    timm = ("timm",) if captioner.config["backbone"]["name"].startswith("timm:") else ()
    requirements = (*_REQUIREMENTS, *((*_OF_TORCH, *timm) if in_torch else _OF_ONNX))
    with mlflow.start_run(run_id=run_id):
        info = mlflow.pyfunc.log_model(
            name=name.replace(".", "-"),  # MLflow refuses dots
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={bundle_of(runtime): str(folder) for runtime, folder in bundles.items()},
            model_config={"runtimes": list(bundles)},
            signature=_signature(column),
            input_example=({column: [content]}, {"beam_size": 1}),
            pip_requirements=[f"{name}=={metadata.version(name).split('+')[0]}" for name in requirements],
        )
    return str(info.model_uri)


def _signature(column: str) -> Any:
    """Return the signature: a binary column and parameters in; one row per picture out, a caption with its details."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    alternative = Object([Property("caption", DataType.string), Property("log_probability", DataType.double)])
    neighbour = Object(
        [
            Property("captions", Array(DataType.string)),
            Property("cosine", DataType.double),
            Property("support", DataType.double),
        ]
    )
    kinds = {int: DataType.long, float: DataType.double, str: DataType.string, bool: DataType.boolean}
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.binary, column)]),
        outputs=Schema(
            [
                ColSpec(DataType.string, "caption"),
                ColSpec(Array(DataType.string), "tokens"),
                ColSpec(Array(DataType.double), "token_probabilities"),
                ColSpec(DataType.double, "log_probability"),
                ColSpec(DataType.double, "confidence", required=False),
                ColSpec(DataType.string, "no_confidence", required=False),
                ColSpec(Array(alternative), "alternatives"),
                ColSpec(Array(Array(Array(DataType.double))), "attention"),
                ColSpec(Array(neighbour), "neighbours"),
                ColSpec(DataType.string, "error", required=False),
            ]
        ),
        params=ParamSchema(
            # The default, such as 0, means "as the model was evaluated".
            [ParamSpec(name, kinds[kind], kind()) for name, kind in TYPES.items()]
        ),
    )


def drop_unregistered(log: TrainingLog) -> None:
    """Delete the models that a killed registration logged in this run but did not register."""
    experiment = log.client.get_run(log.run_id).info.experiment_id
    registered = {version.source for version in log.client.search_model_versions(f"run_id = '{log.run_id}'")}
    for logged in log.client.search_logged_models([experiment], f"source_run_id = '{log.run_id}'"):
        if f"models:/{logged.model_id}" not in registered:
            log.client.delete_logged_model(logged.model_id)
            files = local_folder(str(logged.artifact_location))
            if files is not None:
                shutil.rmtree(files.parent, ignore_errors=True)


def load_captioner(uri: str, files: Path | None = None, runtime: Runtime | None = None) -> Any:
    """Return the captioner of a version or an exported folder: see `open_captioner`."""
    return open_captioner(uri, files, runtime).captioner


def open_captioner(uri: str, files: Path | None = None, runtime: Runtime | None = None) -> LoadedBundle:
    """Load the captioner of a version or an exported folder with the code saved in it.

    uri: the version's address, or the folder's name for messages. files: the folder of its files; None if they are not
    on this machine and must be downloaded. runtime: None for the first of the version's runtimes that is installed.
    Raises AttendError if there is no such captioner.
    """
    if files is not None and (files / DIGEST).is_file():  # a folder written by `attend export`
        if runtime is not None:
            raise AttendError(f"{uri}: an exported folder has one runtime: leave runtime {runtime} out")
        return load_bundle(files, uri)
    if files is not None:
        return load_bundle(bundle_folder(uri, files, runtime), uri)
    folder = Path(tempfile.mkdtemp(prefix="attend-captioner-"))
    try:
        loaded = load_bundle(bundle_folder(uri, download(uri, folder / "model"), runtime), uri)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # The captioner's code may import more of its files during use.
    weakref.finalize(loaded.captioner, shutil.rmtree, folder, ignore_errors=True)
    return loaded


def download(uri: str, folder: Path) -> Path:
    """Download the files of a version from MLflow's current store into a new folder, and return their folder."""
    import mlflow
    from mlflow.exceptions import MlflowException

    folder.mkdir()
    try:
        return Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder)))
    except (MlflowException, OSError) as error:
        store, reason = without_credentials(mlflow.get_tracking_uri()), reason_of(error)
        kind = TransientError if is_transient(error) else AttendError
        raise kind(f"{uri}: cannot be downloaded from {store}: {reason}") from None


def bundle_folder(uri: str, files: Path, runtime: Runtime | None = None) -> Path:
    """Return the folder of a version's bundle for a runtime; AttendError if it has none, or none that is installed.

    files: of the version. runtime: see `open_captioner`.
    """
    has = runtimes_of(uri, files)
    if runtime is not None and runtime not in has:
        raise AttendError(
            f"{uri}: runs on {' and '.join(has)}, not on {runtime}: name it in registry.runtimes and run `attend run` "
            "again; where it is named, it scored too low, as the model card says"
        )
    for name in has if runtime is None else [runtime]:
        if importlib.util.find_spec("torch" if name == "torch" else "onnxruntime") is not None:
            return files / "artifacts" / bundle_of(name)
    raise AttendError(f"{uri}: runs on {' or '.join(has)}, and neither torch nor onnxruntime is installed")


def runtimes_of(uri: str, files: Path) -> list[Runtime]:
    """Return the runtimes of a version, the preferred one first, from the files of its logged model.

    Raises AttendError if they cannot be read, and for a model that attend did not register.
    """
    path = files / "MLmodel"
    try:
        flavours = yaml.safe_load(path.read_text(encoding="utf-8"))["flavors"]
        config = flavours.get("python_function", {}).get("config") or {}
        runtimes: list[Runtime] = config.get("runtimes") or []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        raise AttendError(f"{path}: is missing or damaged: run `attend run` again, which registers again") from None
    if not runtimes:
        raise AttendError(f"{uri}: is not a captioner that attend registered: give the address of one that is")
    return runtimes
