"""The model that is served: loaded by its address, and loaded anew when that names another version."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.serving.limits import RefusedError
from tasks.registry import tracking
from tasks.registry.logged_model import captioner_of, example, load_model
from tasks.registry.versions import address_of, check_address, last_champion, version_at

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

_LOG = logging.getLogger("attend.serve")
_TYPES: dict[str, type] = {"long": int, "integer": int, "double": float, "float": float, "boolean": bool}


@dataclass(frozen=True)
class Loaded:
    """A version in memory. params: what it takes, by name; about: what it is, for clients."""

    uri: str
    model: Any
    params: dict[str, type]
    about: dict[str, Any]

    def predict(self, pictures: list[bytes], params: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows of the registered model; RefusedError for parameters that do not go together."""
        from mlflow.exceptions import MlflowException

        try:
            rows: list[dict[str, Any]] = self.model.predict(None, pictures, params)
            return rows
        except MlflowException as error:
            raise RefusedError(400, " ".join(error.message.split())) from None


class Served:
    """What an address names now. `current` is replaced whole, so that a batch is of one version."""

    def __init__(self, model: str | None, workspace: Path, seconds: float) -> None:
        """model: `models:/NAME@ALIAS` or `models:/NAME/VERSION`; None for the champion registered last.

        seconds: between two looks whether the alias has moved.
        """
        check_address(model)
        self._client = tracking.connect(workspace, must_exist=True)
        self.address = model or last_champion(self._client, workspace)
        self._seconds = seconds
        self._stopped = threading.Event()
        self.failure: str | None = None  # of the last look
        self.current = _load(version_at(self._client, self.address))

    def predict(self, pictures: list[bytes], params: dict[str, Any]) -> list[dict[str, Any]]:
        """As the version that is served now."""
        return self.current.predict(pictures, params)

    def watch(self) -> None:
        """Look, in a thread, whether the address names another version, until `stop`."""
        threading.Thread(target=self._watch, name="champion", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds):
            self.look()

    def look(self) -> None:
        """Take up another version where the address names one; what is served stays where that fails."""
        try:
            version = version_at(self._client, self.address)
            if address_of(version) != self.current.uri:
                self.current = _load(version)
                _LOG.info("serving %s", self.current.uri)
            self.failure = None
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            if why != self.failure:
                _LOG.warning("%s stays: %s", self.current.uri, why)
            self.failure = why


def _load(version: ModelVersion) -> Loaded:
    uri = address_of(version)
    loaded = load_model(uri)
    model = loaded.unwrap_python_model()
    captioner = captioner_of(model, uri)
    schema = loaded.metadata.get_params_schema()
    params = {item.name: _TYPES[item.dtype.name] for item in schema.params} if schema else {}
    about = {
        "model": version.name,
        "version": str(version.version),
        "parameters": list(params),
        "attends": captioner.attends,
        "fit": captioner.config["backbone"]["fit"],
        "beam": captioner.decoding.beam,
        "card": version.description or "",
    }
    found = Loaded(uri, model, params, about)
    found.predict([example()], {})  # the first forward pass is slow: not a client's to wait for
    return found
