"""Division of the pictures into train, dev and test where the data set does not divide them."""

from __future__ import annotations

import hashlib

from tasks.datasets.base import DatasetOptions


def hashed_split(digest: str, data: DatasetOptions) -> str:
    """Return the split of a picture, which depends only on its content: adding other pictures never changes it.

    digest: SHA-256 (hex) of the picture file. data: gives `test_share` and `dev_share`; the rest is train.
    """
    fraction = int.from_bytes(hashlib.sha256(f"split {digest}".encode()).digest()[:8], "big") / 2**64  # in [0, 1)
    if fraction < data.test_share:
        return "test"
    return "dev" if fraction < data.test_share + data.dev_share else "train"
