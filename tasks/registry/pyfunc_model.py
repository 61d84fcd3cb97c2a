"""The code that MLflow runs when a registered captioner is loaded: this file is copied into the model.

It imports nothing from this project. The bundle beside it contains the captioner's code, and load.py, which loads it.
"""

import base64
import binascii
import runpy
from pathlib import Path

import mlflow
import pandas as pd

# Parameter of a request -> (decoding option, minimum, maximum). A parameter of the signature needs a default of its
# type, so 0 stands for "as the model was evaluated".
_PARAMETERS = {
    "beam_size": ("beam", 1, 32),
    "max_length": ("max_length", 1, 100),
    "temperature": ("temperature", 0.05, 10.0),
    "top_p": ("top_p", 0.01, 1.0),
    "top_k": ("top_k", 1, 1_000_000),
    "seed": ("seed", 1, 2**31 - 1),
    "n_best": ("n_best", 1, 100),
    "min_confidence": ("min_confidence", 0.0, 1.0),
}


def photographs_of(model_input):
    """Return the encoded photographs, or .npy files of grids, a list of bytes, from any input that MLflow passes on.

    The input is a data frame, a dict or a list; each photograph in it is bytes or base64 text.
    """
    if isinstance(model_input, pd.DataFrame):
        values = list(model_input["image"] if "image" in model_input else model_input.iloc[:, 0])
    elif isinstance(model_input, dict):
        values = next(model_input[name] for name in ("image", "grid") if name in model_input)
    else:
        values = model_input
    if isinstance(values, (bytes, bytearray, memoryview, str)):
        values = [values]
    return [_photograph(value) for value in values]


def _photograph(value):
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
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return value


def decoding_of(params):
    """Return the decoding options, `attention` included, for a request's parameters.

    Raise MlflowException for a parameter that is out of bounds.
    """
    params = dict(params or {})
    decoding = {"attention": bool(params.get("return_attention")), "otherwise": str(params.get("otherwise") or "")}
    for name, (option, minimum, maximum) in _PARAMETERS.items():
        value = params.get(name) or None
        if value is not None and not minimum <= value <= maximum:
            raise _invalid(f"{name} is {value}: give {minimum} to {maximum}, or 0 for the model's own")
        decoding[option] = value
    return decoding


def _invalid(message):
    """Return the MlflowException for an invalid parameter."""
    return mlflow.exceptions.MlflowException.invalid_parameter_value(message)


class RegisteredCaptioner(mlflow.pyfunc.PythonModel):
    """The pyfunc model: a column `image` of encoded photographs in; one caption with its details a row out."""

    def load_context(self, context):
        """Load the captioner of the bundle, on the GPU where there is one.

        Raise MlflowException where the bundle's files are not those that were registered.
        """
        bundle = Path(context.artifacts["bundle"])
        try:
            self._captioner, photographs = runpy.run_path(str(bundle / "load.py"))["load"](bundle)
        except ValueError as error:  # files that are not those that were registered
            raise mlflow.exceptions.MlflowException(str(error)) from None
        self._admit = photographs.admit

    def predict(self, context, model_input: pd.DataFrame, params=None):
        """Return a dict for each photograph: caption, tokens, token_probabilities, log_probability, confidence,
        alternatives, attention, error.

        Raise MlflowException for parameters that are invalid or do not go together.
        """
        photographs = photographs_of(model_input)
        refusals = [self._refusal(photograph) for photograph in photographs]
        admitted = [photograph for photograph, why in zip(photographs, refusals, strict=True) if why is None]
        try:
            captioned = iter(self._captioner.caption(admitted, **decoding_of(params)))
        except ValueError as error:  # parameters that do not go together
            raise _invalid(str(error)) from None
        return [_row(next(captioned)) if why is None else _without_caption(why) for why in refusals]

    def _refusal(self, photograph):
        """Return why a photograph must not be decoded; None where it may be, and for a grid, whose reader says so."""
        if self._captioner.backbone is None:
            return None
        try:
            self._admit(photograph)
        except ValueError as error:
            return str(error)
        return None


def _row(item):
    """Return the output row of a captioned photograph."""
    if item.error is not None:
        return _without_caption(item.error)
    return {
        "caption": item.caption,
        "tokens": item.tokens,
        "token_probabilities": item.token_probabilities,
        "log_probability": item.log_probability,
        "confidence": item.confidence,
        "alternatives": [{"caption": text, "log_probability": p} for text, p in item.alternatives],
        "attention": item.attention.tolist() if item.attention is not None else [],
        "error": None,
    }


def _without_caption(why):
    """Return the output row of a photograph that has no caption, with the reason."""
    return {
        "caption": "",
        "tokens": [],
        "token_probabilities": [],
        "log_probability": 0.0,
        "confidence": None,
        "alternatives": [],
        "attention": [],
        "error": why,
    }


mlflow.models.set_model(RegisteredCaptioner())
