"""Exceptions with messages for the user, and hints for misspelt names."""

import difflib
import errno
from collections.abc import Iterable

_LONGEST = 600  # the maximum number of characters of a message


class AttendError(Exception):
    """A mistake in the data, the config or the machine, reported in one line.

    The message names the file, row or field, and states the problem and the remedy.
    The command line prints it without a traceback and exits with 1.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_one_line(message))


class TransientError(AttendError, OSError):
    """A failure that may pass within a minute, and is worth a retry before it is reported."""


def check_format(value: object, latest: int, where: str) -> None:
    """Raise AttendError if a file's format is later than the one that this program reads, or is no number.

    where: the file, for the message.
    """
    if type(value) is not int or value > latest:
        raise AttendError(
            f"{where}: has format {str(value)[:20]}, and this version of attend reads formats up to {latest}: a later "
            "version wrote it; nothing is changed: use that version"
        )


def _one_line(message: str) -> str:
    """Return a message as one line of printable characters; the middle of a long one is left out.

    Messages quote the values that they refuse, which may have any length and contain any character.
    """
    if not message.isprintable():
        words = " ".join(message.split())
        message = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in words)
    if len(message) <= _LONGEST:
        return message
    return f"{message[: _LONGEST * 2 // 3]} ... {message[-_LONGEST // 4 :]}"


def reason_of(error: BaseException) -> str:
    """Return the message of a library's error as part of another message: one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]


def is_disk_full(error: BaseException) -> bool:
    """Return whether the error means that the disk, or the user's quota on it, is full.

    HDF5, safetensors and SQLite raise errors that indicate it only in their message.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    message = str(error)
    # The last one is from torch.save: its error names the failing part of the writer, not the cause.
    return any(words in message for words in ("No space left on device", "disk is full", "inline_container"))


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the known name closest to `word`, or a list of all names if none is close."""
    names = sorted(candidates)
    matches = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else f"; known: {', '.join(names)}"


def check_known(name: str, kind: str, names: Iterable[str]) -> None:
    """Raise ValueError, with the closest known name, if `name` is not one of the known names.

    kind: what the name refers to, for the message.
    """
    if name not in names:
        raise ValueError(f"unknown {kind} {name!r}{suggestion(name, names)}")
