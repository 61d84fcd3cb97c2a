"""Errors that mean the machine ran out of memory; they say nothing about the data being processed."""

_PHRASES = ("out of memory", "allocate memory", "insufficient memory", "bad_alloc", "alloc_cpu")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that memory ran out; torch, Pillow and libjpeg say so only in the message."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(phrase in message for phrase in _PHRASES)
