"""Adapter for `coco.pt`: 10,500 COCO pictures of 112 px in a tensor, captions as token ids, and their vocabulary."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models.vocabulary import END, NULL, SPECIAL, START, UNK
from tasks.common.errors import AttendError, reason_of
from tasks.datasets.base import Row, UnpackedOptions, require_file
from tasks.datasets.faults import REFUSE, Faults

if TYPE_CHECKING:
    from torch import Tensor

_MOST_PICKLED = 1 << 24  # bytes of a file's pickle: its vocabulary, and the locations of its tensors
_SPLITS = {"train": "train", "val": "dev", "test": "test"}


class CocoPt(UnpackedOptions):
    """A `coco.pt` file: tensors `{train,val}_images` and `{train,val}_captions`, and a dictionary `vocab`.

    The file is read with `weights_only`. Its captions are already cut to a maximum length, and words that its
    vocabulary lacks are already <UNK>, which stays an unknown word here.
    """

    adapter: Literal["coco_pt"] = "coco_pt"

    def annotation_files(self) -> list[Path]:
        return [require_file(self.path, "data.path")]

    def given_words(self) -> list[str]:
        path = self.annotation_files()[0]
        return _vocabulary_words(_load(path), path)[len(SPECIAL) :]

    def rows(self, generated: Path, faults: Faults = REFUSE) -> Iterator[Row]:
        from PIL import Image

        path = self.annotation_files()[0]
        document = _load(path)
        words = _vocabulary_words(document, path)
        generated.mkdir(parents=True, exist_ok=True)
        for part, split in _SPLITS.items():
            if f"{part}_images" not in document:
                continue
            images = _tensor(document, f"{part}_images", 4, path)
            captions = _tensor(document, f"{part}_captions", 2, path)
            whole = not (captions.is_floating_point() or captions.is_complex())
            if len(images) != len(captions) or images.shape[1] != 3 or str(images.dtype) != "torch.uint8" or not whole:
                raise AttendError(
                    f"{path}: {part}_images is {tuple(images.shape)} {images.dtype} and {part}_captions "
                    f"{tuple(captions.shape)} {captions.dtype}: (N, 3, H, W) uint8 and (N, T) integers are needed"
                )
            for number, (pixels, ids) in enumerate(zip(images, captions.tolist(), strict=True)):
                name = f"{part}-{number:06d}.png"
                Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(generated / name, compress_level=1)
                where = f"{path}: {part}_captions[{number}]"
                with faults.of_row():
                    yield Row(name, (_decode(ids, words, where),), split, where)


def is_coco_tensors(path: Path) -> bool:
    """Return whether a file written by `torch.save` has an entry `train_images`, without reading its tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(item for item in archive.infolist() if item.filename.endswith("data.pkl"))
            return pickled.file_size < _MOST_PICKLED and b"train_images" in archive.read(pickled)
    except (OSError, zipfile.BadZipFile, StopIteration):
        return False


def _load(path: Path) -> dict[str, Any]:
    import torch

    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises various errors for a damaged file
        raise AttendError(f"{path}: cannot be read as tensors: {reason_of(error)}") from None
    if not isinstance(document, dict) or "train_images" not in document:
        raise AttendError(f"{path}: has no train_images: is it a coco.pt file?")
    return document


def _tensor(document: dict[str, Any], field: str, dimensions: int, path: Path) -> Tensor:
    import torch

    value = document.get(field)
    if not isinstance(value, torch.Tensor) or value.ndim != dimensions:
        problem = "is missing" if value is None else f"is not a tensor of {dimensions} dimensions"
        raise AttendError(f"{path}: {field}: {problem}")
    return value


def _vocabulary_words(document: dict[str, Any], path: Path) -> list[str]:
    vocabulary = document.get("vocab")
    words = vocabulary.get("idx_to_token") if isinstance(vocabulary, dict) else None
    if isinstance(words, dict) and all(type(index) is int for index in words):
        words = [words[index] for index in sorted(words)]
    if (
        not isinstance(words, list)
        or tuple(words[: len(SPECIAL)]) != SPECIAL
        or not all(isinstance(word, str) for word in words)
    ):
        raise AttendError(
            f"{path}: vocab.idx_to_token: a list that begins with {', '.join(SPECIAL)}, all texts, is needed"
        )
    return words


def _decode(ids: list[int], words: list[str], where: str) -> str:
    """Return the caption up to <END>, without <NULL> and <START>, as words separated by spaces."""
    caption = []
    for token in ids:
        if token == END:
            break
        if not 0 <= token < len(words):
            raise AttendError(f"{where}: token id {token} is not in the file's vocabulary of {len(words)} words")
        if token not in (NULL, START):
            caption.append(words[token] if token != UNK else SPECIAL[UNK])
    if not caption:
        raise AttendError(f"{where}: the caption has no words")
    return " ".join(caption)
