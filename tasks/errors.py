"""The one exception a person is meant to read."""


class AttendError(Exception):
    """A mistake in the data, the config or the machine, told in one line.

    The message names the file, row or field, says what is wrong and what to do.
    The command line prints it without a traceback and exits with 1.
    """
