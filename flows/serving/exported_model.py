"""The model that is served from an exported folder: without torch, MLflow or a registry."""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image

from flows.serving.limits import RefusedError
from flows.serving.served import LoadedModel, Served, describe
from models.requests import TYPES, CaptionRow, Params
from tasks.captioner.bundle_loader import DIGEST, load
from tasks.captioner.captioner_format import check_captioner
from tasks.common.errors import AttendError


class ExportedModel(Served):
    """The captioner in a folder that `attend export` wrote."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """seconds: between two checks whether the folder holds another captioner."""
        self._folder = folder
        super().__init__(seconds)

    def _identity(self) -> str:
        return str(json.loads((self._folder / DIGEST).read_text(encoding="utf-8"))["digest"])

    def _load(self) -> LoadedModel:
        try:
            identity = self._identity()
            captioner, requests = load(self._folder)
            origin = json.loads((self._folder / "origin.json").read_text(encoding="utf-8"))
            card = (self._folder / "MODEL_CARD.md").read_text(encoding="utf-8")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AttendError(f"{self._folder}: is no whole folder that `attend export` wrote: {error}") from None
        shown = str(self._folder)
        check_captioner(captioner.config, shown)

        def predict(pictures: list[bytes], given: Params) -> list[CaptionRow]:
            try:
                rows: list[CaptionRow] = requests.answer(captioner, pictures, given)
                return rows
            except ValueError as error:
                raise RefusedError(400, " ".join(str(error).split())) from None

        about = describe(captioner, origin["model"], origin["version"], list(TYPES), card, shown)
        loaded = LoadedModel(shown, identity, TYPES, captioner, about, predict)
        picture = io.BytesIO()
        Image.new("RGB", (32, 32)).save(picture, "PNG")
        loaded.predict([picture.getvalue()], {})
        return loaded
