"""The captioner as MLflow keeps it: a pyfunc model logged from code, with its signature and its requirements."""

from __future__ import annotations

import io
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from PIL import Image

from tasks.common.errors import AttendError
from tasks.registry.tracking import TrainingLog, without_credentials

_REQUIREMENTS = ("mlflow", "torch", "torchvision", "torchcodec", "safetensors", "pillow", "numpy", "pandas")


def log_model(run_id: str, bundle: Path, libraries: tuple[str, ...] = ()) -> str:
    """Log the bundle as a pyfunc model, from code, and return its `models:/m-...` address.

    libraries: what its backbone needs beside the usual.
    """
    import mlflow

    requirements = (*_REQUIREMENTS, *libraries)
    with mlflow.start_run(run_id=run_id):
        info = mlflow.pyfunc.log_model(
            name="captioner",
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={"bundle": str(bundle)},
            signature=_signature(),
            input_example=({"image": [example()]}, {"beam_size": 1}),
            pip_requirements=[f"{name}=={metadata.version(name).split('+')[0]}" for name in requirements],
        )
    return str(info.model_uri)


def _signature() -> Any:
    """A column of encoded photographs, and parameters, in; a caption with its details a row out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, Object, Property

    alternative = Object([Property("caption", DataType.string), Property("log_probability", DataType.double)])
    # 0 stands for "as the model was evaluated".
    integers, numbers = ("beam_size", "max_length", "n_best"), ("temperature", "top_p")
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.binary, "image")]),
        outputs=Schema(
            [
                ColSpec(DataType.string, "caption"),
                ColSpec(Array(DataType.string), "tokens"),
                ColSpec(DataType.double, "log_probability"),
                ColSpec(Array(alternative), "alternatives"),
                ColSpec(Array(Array(Array(DataType.double))), "attention"),
                ColSpec(DataType.string, "error", required=False),
            ]
        ),
        params=ParamSchema(
            [
                *(ParamSpec(name, DataType.long, 0) for name in integers),
                *(ParamSpec(name, DataType.double, 0.0) for name in numbers),
                ParamSpec("return_attention", DataType.boolean, False),
            ]
        ),
    )


def example() -> bytes:
    """A small PNG, which MLflow keeps with the model to show what it takes."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize((32, 32)).convert("RGB").save(file, "PNG")
    return file.getvalue()


def drop_unregistered(log: TrainingLog, model: str) -> None:
    """Delete what a killed registration logged of this run and did not come to register."""
    experiment = log.client.get_run(log.run_id).info.experiment_id
    registered = {version.source for version in log.client.search_model_versions(f"name = '{model}'")}
    for logged in log.client.search_logged_models([experiment], f"source_run_id = '{log.run_id}'"):
        if f"models:/{logged.model_id}" not in registered:
            log.client.delete_logged_model(logged.model_id)
            place = urlsplit(logged.artifact_location)
            if place.scheme == "file":
                shutil.rmtree(unquote(place.path), ignore_errors=True)


def load_model(uri: str) -> Any:
    """MLflow's model at an address, by its own code; AttendError where the address names none."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        return mlflow.pyfunc.load_model(uri)
    except (MlflowException, OSError) as error:
        store, told = without_credentials(mlflow.get_tracking_uri()), " ".join(str(error).split())[:160]
        raise AttendError(f"{uri}: no such model in {store}: {told}") from None


def captioner_of(model: Any, uri: str) -> Any:
    """The Captioner within a loaded model; AttendError where it is a model of another kind."""
    captioner = getattr(model, "_captioner", None)
    if captioner is None:
        raise AttendError(f"{uri}: is no captioner that attend registered")
    return captioner


def load_captioner(uri: str) -> Any:
    """The Captioner of a registered model."""
    return captioner_of(load_model(uri).unwrap_python_model(), uri)
