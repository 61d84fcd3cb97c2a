"""A model served from an exported folder: without torch, MLflow or a registry."""

from __future__ import annotations

import json
from pathlib import Path

from flows.serving.served import LoadedModel, Served
from tasks.captioner.load_bundle import load_bundle, stored_digest
from tasks.common.errors import AttendError


class ExportedModel(Served):
    """The captioner in a folder written by `attend export`."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """seconds: the interval between checks whether the folder holds another captioner."""
        self._folder = folder
        super().__init__(seconds)

    def _identity(self) -> str:
        return stored_digest(self._folder)

    def _load(self) -> LoadedModel:
        shown = str(self._folder)
        try:
            identity = self._identity()
            origin = json.loads((self._folder / "origin.json").read_text(encoding="utf-8"))
            model, version = str(origin["model"]), str(origin["version"])
            card = (self._folder / "MODEL_CARD.md").read_text(encoding="utf-8")
            loaded = load_bundle(self._folder, shown)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AttendError(f"{shown}: is no whole folder that `attend export` wrote: {error}") from None
        return LoadedModel.of(loaded, shown, identity, model, version, card)
