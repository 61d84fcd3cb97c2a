"""The model that is served: loaded by its address, and replaced when the address names another version."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from flows.serving.batching import CaptionRow, Params
from flows.serving.limits import RefusedError
from tasks.common.errors import AttendError
from tasks.registry import tracking
from tasks.registry.logged_model import example, load_model, unwrap_captioner
from tasks.registry.versions import address_of, check_address, default_champion, version_of_address

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_LOG = logging.getLogger("attend.serve")
_TYPES: dict[str, type] = {"long": int, "integer": int, "double": float, "float": float, "boolean": bool, "string": str}


class ModelInfo(TypedDict):
    """The description of the served model for clients, the answer to GET /model."""

    model: str
    version: str
    parameters: list[str]
    attends: bool
    fit: str
    beam: int
    confident: bool
    card: str


@dataclass(frozen=True)
class LoadedVersion:
    """A model version in memory.

    uri: its address. params: the types of the parameters that it takes, by name. about: its description for clients.
    """

    uri: str
    model: Any
    params: dict[str, type]
    about: ModelInfo

    def predict(self, pictures: list[bytes], params: Params) -> list[CaptionRow]:
        """Return the model's row for each picture. Raises RefusedError for parameters that do not go together."""
        from mlflow.exceptions import MlflowException

        try:
            rows: list[CaptionRow] = self.model.predict(None, pictures, params)
            return rows
        except MlflowException as error:
            raise RefusedError(400, " ".join(error.message.split())) from None


class ServedModel:
    """The version that an address names now.

    `current` is replaced as a whole, so that each batch is captioned by one version. `failure`: why the last check for
    another version failed, or None.
    """

    def __init__(self, model: str | None, workspace: Path, seconds: float) -> None:
        """model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; None for the champion promoted last.

        seconds: between two checks whether the address names another version.
        """
        check_address(model)
        self._client = tracking.connect(workspace, must_exist=True)
        self.address = model or default_champion(self._client, workspace)
        self._seconds = seconds
        self._stopped = threading.Event()
        self.failure: str | None = None
        self.current = _load(version_of_address(self._client, self.address))

    def predict(self, pictures: list[bytes], params: Params) -> list[CaptionRow]:
        """Caption pictures with the version that is served now."""
        return self.current.predict(pictures, params)

    def watch(self) -> None:
        """Start a thread that checks whether the address names another version, until `stop`."""
        threading.Thread(target=self._watch, name="champion", daemon=True).start()

    def stop(self) -> None:
        """End the thread of `watch`."""
        self._stopped.set()

    def _watch(self) -> None:
        """Check at every interval, until `stop`."""
        while not self._stopped.wait(self._seconds):
            self.check_for_new_version()

    def check_for_new_version(self) -> None:
        """Load the version that the address names, if it is another. Where that fails, the served version stays."""
        try:
            version = version_of_address(self._client, self.address)
            if address_of(version) != self.current.uri:
                self.current = _load(version)
                _LOG.info("serving %s", self.current.uri)
            self.failure = None
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            if why != self.failure:
                _LOG.warning("could not check for another version, still serving %s: %s", self.current.uri, why)
            self.failure = why


def _load(version: ModelVersion) -> LoadedVersion:
    """Load a version, and caption an example picture with it."""
    uri = address_of(version)
    pyfunc = load_model(uri)
    model = pyfunc.unwrap_python_model()
    captioner = unwrap_captioner(model, uri)
    if captioner.backbone is None:
        raise AttendError(f"{uri}: takes grids in place of photographs: serve it with `mlflow models serve -m {uri}`")
    schema = pyfunc.metadata.get_params_schema()
    params = {item.name: _TYPES[item.dtype.name] for item in schema.params} if schema else {}
    about: ModelInfo = {
        "model": version.name,
        "version": str(version.version),
        "parameters": list(params),
        "attends": captioner.attends,
        "fit": captioner.config["backbone"]["fit"],
        "beam": captioner.decoding.beam,
        "confident": getattr(captioner, "confidence", None) is not None,  # older versions do not know of it
        "card": version.description or "",
    }
    loaded = LoadedVersion(uri, model, params, about)
    loaded.predict([example()], {})  # here, because the first forward pass is slow: no client should wait for it
    return loaded
