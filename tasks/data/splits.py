"""Division of the pictures into train, dev and test where the data set does not divide them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from tasks.common.wording import counted
from tasks.datasets.base import DatasetOptions


class Divided(NamedTuple):
    """The split of each picture. note: what was divided here, as part of a sentence; empty where nothing was."""

    splits: list[str]
    note: str


def divide(pictures: Sequence[tuple[str | None, str]], data: DatasetOptions) -> Divided:
    """Return the split of each picture; all depend on the pictures' contents alone.

    pictures: the split that the data set gives, if any, and the digest, of each. Pictures without a split are divided
    by `data.dev_share` and `data.test_share`; where the data set gives splits but no dev, that share of train is dev.
    """
    undivided = sum(split is None for split, _ in pictures)
    splits = [split or hashed_split(digest, data) for split, digest in pictures]
    if undivided:
        return Divided(splits, f"{counted(undivided, 'picture')} without a split, divided by content")
    if "dev" in splits or data.dev_share == 0:
        return Divided(splits, "")
    splits = [
        "dev" if split == "train" and fraction(digest) < data.dev_share else split
        for split, (_, digest) in zip(splits, pictures, strict=True)
    ]
    taken = splits.count("dev")
    note = f"no dev split: {counted(taken, 'picture')} of train, chosen by content, became it" if taken else ""
    return Divided(splits, note)


def hashed_split(digest: str, data: DatasetOptions) -> str:
    """Return the split of a picture, which depends only on its content: adding other pictures never changes it.

    digest: SHA-256 (hex) of the picture file. data: gives `test_share` and `dev_share`; the rest is train.
    """
    share = fraction(digest)
    if share < data.test_share:
        return "test"
    return "dev" if share < data.test_share + data.dev_share else "train"


def fraction(digest: str) -> float:
    """Return a number in [0, 1) that a digest alone decides."""
    return int.from_bytes(hashlib.sha256(f"split {digest}".encode()).digest()[:8], "big") / 2**64
