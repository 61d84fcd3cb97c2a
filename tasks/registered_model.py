"""What MLflow runs when a registered captioner is loaded: this file is copied into the model.

It imports nothing of this project. The bundle beside it carries the captioner's own code; it is loaded under
a package name made from the bundle's digest, so that two versions in one process each run their own.
"""

import base64
import binascii
import importlib
import importlib.util
import json
import sys
import threading
from pathlib import Path

import mlflow
import pandas as pd
import torch

_LIMITS = {"beam_size": (1, 32), "max_length": (1, 100), "n_best": (1, 32)}
_LOADING = threading.Lock()


def load_captioner(bundle, device="cpu"):
    """The captioner of a bundle's folder, by the code in the bundle."""
    folder = Path(bundle)
    name = "attend_" + json.loads((folder / "bundle.json").read_text(encoding="utf-8"))["digest"][:20]
    with _LOADING:
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(
                name, folder / "models" / "__init__.py", submodule_search_locations=[str(folder / "models")]
            )
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return importlib.import_module(f"{name}.captioner").Captioner.load(folder, device)


def photographs_of(model_input):
    """The encoded photographs of whatever MLflow hands over: a frame, a dict or a list; bytes or base64 text."""
    if isinstance(model_input, pd.DataFrame):
        values = list(model_input["image"] if "image" in model_input else model_input.iloc[:, 0])
    elif isinstance(model_input, dict):
        values = model_input["image"]
    else:
        values = model_input
    if isinstance(values, (bytes, bytearray, memoryview, str)):
        values = [values]
    return [_photograph(value) for value in values]


def _photograph(value):
    if isinstance(value, dict):
        value = value.get("image")
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return b""
    value = bytes(value)
    if value[:4] in (b"\x89PNG", b"RIFF", b"GIF8", b"II*\x00", b"MM\x00*") or value[:2] in (b"\xff\xd8", b"BM"):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return value


class RegisteredCaptioner(mlflow.pyfunc.PythonModel):
    """A column `image` of encoded photographs in; one caption with its details a row out."""

    def load_context(self, context):
        self._captioner = load_captioner(context.artifacts["bundle"], "cuda" if torch.cuda.is_available() else "cpu")

    def predict(self, context, model_input: pd.DataFrame, params=None):
        """A list of dicts: caption, tokens, log_probability, alternatives, attention, error."""
        params = dict(params or {})
        for name, (least, most) in _LIMITS.items():
            value = params.get(name) or 0
            # 0 stands for "as the model was evaluated": a signature's parameter needs a default of its type.
            if value and not least <= value <= most:
                raise mlflow.exceptions.MlflowException.invalid_parameter_value(
                    f"{name} is {value}: give {least} to {most}"
                )
        try:
            captioned = self._captioner.caption(
                photographs_of(model_input),
                beam=params.get("beam_size") or None,
                max_length=params.get("max_length") or None,
                n_best=params.get("n_best") or None,
                attention=bool(params.get("return_attention", False)),
            )
        except ValueError as error:  # parameters that do not go together
            raise mlflow.exceptions.MlflowException.invalid_parameter_value(str(error)) from None
        return [
            {
                "caption": item.caption,
                "tokens": item.tokens,
                "log_probability": item.log_probability,
                "alternatives": [{"caption": text, "log_probability": p} for text, p in item.alternatives],
                "attention": item.attention.tolist() if item.attention is not None else [],
                "error": item.error,
            }
            for item in captioned
        ]


mlflow.models.set_model(RegisteredCaptioner())
