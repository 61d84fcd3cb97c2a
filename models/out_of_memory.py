"""Errors that mean the machine ran out of memory. They say nothing about the data that was worked on."""

_PHRASES = ("out of memory", "allocate memory", "insufficient memory", "bad_alloc", "alloc_cpu")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that memory ran out: torch, Pillow and libjpeg say so only in their messages."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(phrase in message for phrase in _PHRASES)
