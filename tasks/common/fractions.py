"""Pseudo-random numbers that depend only on a picture's content, so that adding other pictures never changes them."""

from __future__ import annotations

import hashlib


def fraction(purpose: str, digest: str) -> float:
    """Return a number in [0, 1) that depends only on purpose and digest; different purposes are independent."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {digest}".encode()).digest()[:8], "big") / 2**64
