"""The served model: loaded from its source, and replaced when the source has another one."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from flows.serving.limits import RefusedError
from flows.serving.responses import ModelInfo
from models.captioned import takes_grids
from models.requests import CaptionRow, Params
from tasks.captioner.load_bundle import LoadedBundle, example
from tasks.common.errors import AttendError, reason_of

_LOG = logging.getLogger("attend.serve")


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory.

    name: its address or folder. identity: identifies what was loaded, such as a version's address. captioner, requests:
    see `LoadedBundle`. about: its description for clients.
    """

    name: str
    identity: str
    captioner: Any
    requests: Any
    about: ModelInfo

    @classmethod
    def of(cls, loaded: LoadedBundle, name: str, identity: str, model: str, version: str, card: str) -> LoadedModel:
        """Return the model of a captioner, after captioning an example, because the first forward pass is slow.

        model, version: its name and number in the registry. card: its model card. Raises AttendError for a captioner
        that takes grids.
        """
        captioner, requests = loaded
        if takes_grids(captioner.config):
            raise AttendError(
                f"{name}: takes grids in place of photographs: serve its version by `mlflow models serve`"
            )
        about = ModelInfo(
            model=model,
            version=version,
            runtime=captioner.config["onnx"]["runtime"] if "onnx" in captioner.config else "torch",
            parameters=list(requests.TYPES),
            attends=captioner.attends,
            fit=captioner.config["backbone"]["fit"],
            beam=captioner.decoding.beam,
            confident=captioner.confidence is not None,
            card=card,
        )
        made = cls(name, identity, captioner, requests, about)
        made.predict([example()], {})
        return made

    def predict(self, pictures: list[bytes], params: Params) -> list[CaptionRow]:
        """Return the row of each picture. Raises RefusedError for parameters that do not go together."""
        try:
            rows: list[CaptionRow] = self.requests.answer(self.captioner, pictures, params)
        except ValueError as error:
            raise RefusedError(400, str(error)) from None
        return rows


class Served(ABC):
    """The current model of a source.

    `current` is replaced as a whole, so that each batch is captioned by one model. `failure`: why the last check for
    another model failed, or None.
    """

    def __init__(self, seconds: float) -> None:
        """Load the model. seconds: the interval between checks for another model."""
        self._seconds = seconds
        self._stopped = threading.Event()
        self.failure: str | None = None
        self.current = self._load()

    @abstractmethod
    def _identity(self) -> str:
        """Return the identity of the source's current model."""

    @abstractmethod
    def _load(self) -> LoadedModel:
        """Load the source's current model."""

    def predict(self, pictures: list[bytes], params: Params) -> list[CaptionRow]:
        """Caption pictures with the current model."""
        return self.current.predict(pictures, params)

    def watch(self) -> None:
        """Start a thread that checks for another model, until `stop`."""
        threading.Thread(target=self._watch, name="champion", daemon=True).start()

    def stop(self) -> None:
        """End the thread of `watch`."""
        self._stopped.set()

    def _watch(self) -> None:
        """Check at every interval, until `stop`."""
        while not self._stopped.wait(self._seconds):
            self.check_for_another()

    def check_for_another(self) -> None:
        """Load the source's model if it has changed. If that fails, the served model is kept."""
        try:
            if self._identity() != self.current.identity:
                self.current = self._load()
                _LOG.info("serving %s", self.current.name)
            self.failure = None
        except Exception as error:
            why = reason_of(error)
            if why != self.failure:
                _LOG.warning("could not check for another model, still serving %s: %s", self.current.name, why)
            self.failure = why
