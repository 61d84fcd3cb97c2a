"""The weights of a training's best epochs, a file each in the folder in which it runs, and the digests of the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
from torch import Tensor

from models.weight_files import save_tensors
from tasks.common.errors import AttendError
from tasks.common.files import digest_of_file, flush, write_whole

_NAME = ".epoch-{}.safetensors"


class KeptWeights:
    """The files of kept weights. digests: epoch, from 0 -> SHA-256 of its file, as the checkpoint has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.digests: dict[int, str] = {}

    def path(self, epoch: int) -> Path:
        """Return the file of an epoch's weights."""
        return self._folder / _NAME.format(epoch)

    def save(self, state: dict[str, Tensor], epoch: int, kept: Sequence[int]) -> None:
        """Write an epoch's weights. kept: the epochs that are kept from now on, this one among them."""
        save_weights(state, self.path(epoch))
        digests = {**self.digests, epoch: digest_of_file(self.path(epoch))}
        self.digests = {epoch: digests[epoch] for epoch in kept}

    def remove_others(self, kept: Sequence[int]) -> None:
        """Remove the weights of epochs that are not kept.

        Call this only after the checkpoint: a killed run resumes with the history of its checkpoint, and needs the
        weights that are kept by it.
        """
        paths = {self.path(epoch) for epoch in kept}
        for path in self._folder.glob(_NAME.format("*")):
            if path not in paths:
                path.unlink()

    def damage(self, digests: Mapping[int, str]) -> str | None:
        """Return which weights are gone or do not match these digests; None where all do."""
        for epoch, digest in digests.items():
            path = self.path(epoch)
            if not path.exists() or digest_of_file(path) != digest:
                return f"{path}: these weights do not match their digest"
        return None

    def check(self, kept: Sequence[int], name: str, section: str) -> None:
        """Raise AttendError where the kept weights do not match their digests, or are not finite.

        name, section: the stage and its config section, for the message.
        """
        damage = self.damage(self.digests)
        if damage is not None:
            raise AttendError(f"{damage}: run again: the training begins anew")
        for epoch in kept:
            weights = safetensors.torch.load_file(self.path(epoch))
            broken = [key for key, value in weights.items() if not value.isfinite().all()]
            if broken:
                raise AttendError(
                    f"{name}: the kept weights are not finite ({broken[0]}): lower {section}.learning_rate"
                )


def save_weights(state: dict[str, Tensor], path: Path) -> None:
    """Write weights whole and flush them, so that they are on the disk before the checkpoint that ranks them."""
    with write_whole(path) as temporary:
        save_tensors(state, temporary)
    flush(path.parent)
