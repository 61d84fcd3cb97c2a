"""What may pass by itself is tried again; a mistake is told at once."""

from __future__ import annotations

import errno
import socket
import sqlite3
from urllib.error import URLError

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, TEMPORARILY_UNAVAILABLE
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import InvalidURL

from tasks.common.errors import AttendError, TransientError
from tasks.common.retries import is_transient

PASSING: list[BaseException] = [
    TransientError("the server does not answer"),
    OSError(errno.EIO, "input/output error"),
    OSError(errno.ESTALE, "stale file handle"),
    ConnectionResetError(errno.ECONNRESET, "reset"),
    TimeoutError("timed out"),
    URLError(ConnectionRefusedError(errno.ECONNREFUSED, "refused")),
    socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution"),
    sqlite3.OperationalError("database is locked"),
    NoConnection("refused"),
    MlflowException("down", error_code=TEMPORARILY_UNAVAILABLE),
]
MISTAKES: list[BaseException] = [
    AttendError("grids.backbone: no such backbone"),
    *(OSError(getattr(errno, name), name) for name in ("EACCES", "EROFS", "ENOENT", "EISDIR", "ELOOP", "ENAMETOOLONG")),
    URLError("unknown url type: mailto"),
    socket.gaierror(socket.EAI_NONAME, "name or service not known"),
    sqlite3.OperationalError("no such table: runs"),
    InvalidURL("http://:x"),
    MlflowException("not allowed", error_code=PERMISSION_DENIED),
    ValueError("a bug"),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_transient_failures_are_retried(error: BaseException) -> None:
    assert is_transient(error)


@pytest.mark.parametrize("error", MISTAKES, ids=repr)
def test_a_mistake_is_not(error: BaseException) -> None:
    assert not is_transient(error)
