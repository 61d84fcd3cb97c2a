"""What a person is told of a mistake: the one exception that is meant to be read."""

import difflib
import errno
from collections.abc import Iterable


class AttendError(Exception):
    """A mistake in the data, the config or the machine, told in one line.

    The message names the file, row or field, says what is wrong and what to do.
    The command line prints it without a traceback and exits with 1.
    """


class PassingError(AttendError, OSError):
    """What may be gone in a minute: worth another try before a person is told."""


def is_disk_full(error: BaseException) -> bool:
    """Whether the disk, or the quota, had no room. HDF5, safetensors and sqlite tell it in words alone."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    told = str(error)
    # The last is torch.save's: its writer tells where it failed, not why.
    return any(words in told for words in ("No space left on device", "disk is full", "inline_container"))


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name nearest to `word`, else the known names."""
    names = sorted(known)
    found = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else f"; known: {', '.join(names)}"


def check_known(name: str, kind: str, known: Iterable[str]) -> None:
    """ValueError, with the nearest known name, for a name of some kind that is not known."""
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, known)}")
