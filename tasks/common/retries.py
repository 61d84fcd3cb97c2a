"""Failures that may pass within a minute, so that a stage is worth a retry. All others are reported at once."""

from __future__ import annotations

import errno
import socket
import sqlite3
from urllib.error import URLError

from tasks.common.errors import TransientError

_ERRNOS = {
    getattr(errno, name)
    for name in (
        *("EIO", "EAGAIN", "EINTR", "EBUSY", "ESTALE", "ENOLCK", "EPIPE", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH"),
        *("ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "ENETDOWN", "ENETUNREACH", "ENETRESET", "ENOTCONN"),
    )
}
_OF_HTTP = {"ConnectionError", "Timeout", "ConnectTimeout", "ReadTimeout", "ChunkedEncodingError", "ProtocolError"}
_OF_MLFLOW = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED"}


def is_transient(error: BaseException) -> bool:
    """Return whether the failure is one of a disk, network, database or server that may recover by itself."""
    module, name = type(error).__module__.split(".")[0], type(error).__name__
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return is_transient(error.reason)
    if module in ("requests", "urllib3"):
        return name in _OF_HTTP
    if module == "mlflow":
        return getattr(error, "error_code", None) in _OF_MLFLOW
    if isinstance(error, sqlite3.OperationalError) or (module == "sqlalchemy" and name == "OperationalError"):
        return any(word in str(error) for word in ("locked", "busy", "connection"))
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    passing = isinstance(error, TransientError | ConnectionError | TimeoutError)
    return passing or (isinstance(error, OSError) and error.errno in _ERRNOS)
