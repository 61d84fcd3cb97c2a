"""The code that MLflow runs when a registered captioner is loaded: this file is copied into the model.

It imports nothing from this project. The bundles beside it, one for each runtime, contain the captioner's code, and
load.py, which loads it.
"""

import importlib.util
import runpy
from pathlib import Path

import mlflow
import pandas as pd

# The package that each runtime needs, in the order of trying.
_PACKAGES = {"torch": "torch", "onnx": "onnxruntime", "onnx-float16": "onnxruntime", "onnx-int8": "onnxruntime"}


def photographs_of(model_input, from_base64):
    """Return the encoded photographs, or .npy files of grids, a list of bytes, from any input that MLflow passes on.

    The input is a data frame, a dict or a list; each photograph in it is bytes or base64 text. MLflow converts a dict
    of base64 texts into a data frame with a list in its only cell. from_base64: decodes a text; ValueError if it is
    not base64.
    """
    if isinstance(model_input, pd.DataFrame):
        values = list(model_input["image"] if "image" in model_input else model_input.iloc[:, 0])
    elif isinstance(model_input, dict):
        values = next(model_input[name] for name in ("image", "grid") if name in model_input)
    else:
        values = model_input
    if isinstance(values, (bytes, bytearray, memoryview, str)):
        values = [values]
    cells = [value if isinstance(value, list) else [value] for value in values]
    return [_photograph(value, from_base64) for cell in cells for value in cell]


def _photograph(value, from_base64):
    """Return one encoded photograph, bytes, from bytes or base64 text; empty for a value of another type."""
    if isinstance(value, dict):
        value = value.get("image")
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return b""
    value = bytes(value)
    if (
        value[:6] == b"\x93NUMPY"
        or value[:4] in (b"\x89PNG", b"RIFF", b"GIF8", b"II*\x00", b"MM\x00*")
        or value[:2] in (b"\xff\xd8", b"BM")
    ):
        return value
    try:
        return from_base64(value.decode())
    except ValueError:
        return value


def runtime_of(runtimes, artifacts):
    """Return the first runtime whose package is installed. artifacts: of the model, by name.

    Raises MlflowException if the model has none of these runtimes, or no package for one is installed.
    """
    has = [name for name in _PACKAGES if artifact_of(name) in artifacts]
    installed = [name for name in runtimes if name in has]
    if not installed:
        raise _invalid(f"runtimes: the model has {', '.join(has)}, and none of {', '.join(map(str, runtimes))}")
    for name in installed:
        if importlib.util.find_spec(_PACKAGES[name]) is not None:
            return name
    raise _invalid(f"runtimes: install {' or '.join(sorted({_PACKAGES[name] for name in installed}))}, which they need")


def artifact_of(runtime):
    """Return the name of a runtime's artifact."""
    return "bundle" if runtime == "torch" else runtime


def _invalid(message):
    """Return the MlflowException for an invalid parameter."""
    return mlflow.exceptions.MlflowException.invalid_parameter_value(message)


class RegisteredCaptioner(mlflow.pyfunc.PythonModel):
    """The pyfunc model: a column `image` of encoded photographs in; one caption with its details a row out."""

    def load_context(self, context):
        """Load the captioner for the model's first runtime that is installed; a torch captioner uses a GPU, if any.

        `mlflow.pyfunc.load_model(address, model_config={"runtimes": ["onnx"]})` chooses others. Raises MlflowException
        if there is none, or the files do not match those that were registered.
        """
        runtime = runtime_of((context.model_config or {}).get("runtimes") or ["torch"], context.artifacts)
        bundle = Path(context.artifacts[artifact_of(runtime)])
        try:
            self._captioner, self._requests = runpy.run_path(str(bundle / "load.py"))["load"](bundle)
        except ValueError as error:  # the files do not match those that were registered
            raise mlflow.exceptions.MlflowException(str(error)) from None

    def predict(self, context, model_input: pd.DataFrame, params=None):
        """Return a dict for each photograph: caption, tokens, token_probabilities, log_probability, confidence,
        alternatives, attention, error.

        Raises MlflowException for parameters that are invalid or cannot be combined.
        """
        try:
            return self._requests.answer(
                self._captioner, photographs_of(model_input, self._requests.from_base64), params
            )
        except ValueError as error:
            raise _invalid(str(error)) from None


mlflow.models.set_model(RegisteredCaptioner())
