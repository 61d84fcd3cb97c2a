"""The weights of a training's best epoch so far: a file in the training's folder, and the file's digest."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import Tensor

from models.captioner import save_tensors
from tasks.common.errors import AttendError
from tasks.common.files import atomic_file, digest_of_file, flush

_NAME = ".epoch-{}.safetensors"


Record = tuple[int, str]  # the weights' row in the history, and the SHA-256 of their file


class BestWeights:
    """The file of the best weights. record: what a checkpoint stores of them; None before the first epoch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.record: Record | None = None

    @property
    def path(self) -> Path:
        """Return the file of the weights that `record` names."""
        assert self.record is not None
        return self._folder / _NAME.format(self.record[0])

    def save(self, state: dict[str, Tensor], row: int) -> None:
        """Write the weights of a row of the history to a new file."""
        path = self._folder / _NAME.format(row)
        save_weights(state, path)
        self.record = row, digest_of_file(path)

    def remove_others(self) -> None:
        """Remove the files of earlier weights.

        Call this only after the checkpoint is written: a killed run resumes with the history in its checkpoint, and
        needs the best weights of that history.
        """
        for path in self._folder.glob(_NAME.format("*")):
            if path != self.path:
                path.unlink()

    def damage(self, record: Record | None) -> str | None:
        """Return which weights are missing or do not match their digest; None if they match, or there are none."""
        if record is None:
            return None
        path = self._folder / _NAME.format(record[0])
        if path.exists() and digest_of_file(path) == record[1]:
            return None
        return f"{path}: these weights do not match their digest"

    def load(self, name: str, section: str) -> dict[str, Tensor]:
        """Return the weights, on the CPU; AttendError if they do not match their digest, or are not finite.

        name, section: the stage and its config section, for the message.
        """
        damage = self.damage(self.record)
        if damage is not None:
            raise AttendError(f"{damage}: run again: the training begins anew")
        weights: dict[str, Tensor] = safetensors.torch.load_file(self.path)
        broken = [key for key, value in weights.items() if not value.isfinite().all()]
        if broken:
            raise AttendError(f"{name}: the kept weights are not finite ({broken[0]}): lower {section}.learning_rate")
        return weights


def save_weights(state: dict[str, Tensor], path: Path) -> None:
    """Write weights whole and flush them, so that they are on the disk before the checkpoint that names them."""
    with atomic_file(path) as temporary:
        save_tensors(state, temporary)
    flush(path.parent)
