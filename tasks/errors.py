"""The one exception a person is meant to read."""

import errno


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
