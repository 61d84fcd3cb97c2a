"""The SQLite database of a workspace's embedded MLflow store, created and upgraded atomically.

MLflow creates and upgrades its tables in many transactions, and cannot continue if it was killed between them. So it
works on a draft, which is then renamed. A file beside the database records the version of MLflow that finished it.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from pathlib import Path

from tasks.common.errors import AttendError, reason_of
from tasks.common.files import flush, write_atomically

DATABASE, VERSION = "mlflow.db", "mlflow.db.version"
_DRAFT = ".mlflow.db.draft"


def prepare_database(workspace: Path, may_write: bool = True) -> None:
    """Create the workspace's database, or upgrade one from another version of MLflow.

    may_write: whether this process may write to the workspace; the caller then holds the lock `mlflow-store`. Raises
    AttendError if MLflow cannot upgrade a database, or if an upgrade is needed but not allowed.
    """
    import mlflow

    database, version = workspace / DATABASE, workspace / VERSION
    if database.is_file() and version.is_file() and version.read_text(encoding="utf-8") == mlflow.__version__:
        return
    if database.is_file() and _is_up_to_date(database):
        if may_write:
            write_atomically(version, mlflow.__version__)
        return
    if not may_write:
        raise AttendError(
            f"{database}: is of another version of MLflow than this {mlflow.__version__}, and cannot be upgraded here: "
            "it is read-only; any command of somebody who may write to it upgrades it"
        )
    draft = _new_draft(workspace)
    try:
        if database.is_file():
            with (
                contextlib.closing(sqlite3.connect(database)) as source,
                contextlib.closing(sqlite3.connect(draft)) as target,
            ):
                source.backup(target)  # the state after its last complete transaction
            _upgrade_tables(draft)
        uri = f"sqlite:///{draft}"
        mlflow.MlflowClient(uri, uri).search_experiments(max_results=1)  # creates the tables if there are none
    except Exception as error:
        if not database.is_file():
            raise
        reason = reason_of(error)
        raise AttendError(
            f"{database}: MLflow {mlflow.__version__} cannot upgrade it ({reason}): it is unchanged; install the "
            "version of MLflow that made it, or move it away"
        ) from None
    flush(draft)
    draft.replace(database)
    flush(workspace)
    write_atomically(version, mlflow.__version__)


def _is_up_to_date(database: Path) -> bool:
    """Return whether the tables match this version of MLflow; False for a database that cannot be read."""
    import sqlalchemy
    from mlflow.store.db.utils import _get_latest_schema_revision, _get_schema_version

    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    try:
        schema_version = _get_schema_version(engine)  # type: ignore[no-untyped-call]
        return bool(schema_version == _get_latest_schema_revision())  # type: ignore[no-untyped-call]
    except sqlalchemy.exc.SQLAlchemyError:
        return False
    finally:
        engine.dispose()


def _new_draft(workspace: Path) -> Path:
    """Return the path of the draft, after removing drafts left by killed processes."""
    for path in workspace.glob(f"{_DRAFT}*"):
        path.unlink()
    if not (workspace / DATABASE).exists():
        for path in workspace.glob(f"{DATABASE}-*"):  # SQLite would use them as the journal of the new database
            path.unlink()
    return workspace / f"{_DRAFT}-{secrets.token_hex(4)}"  # a new name, because MLflow caches connections by path


def _upgrade_tables(draft: Path) -> None:
    """Upgrade MLflow's tables, as the command `mlflow db upgrade` does."""
    import sqlalchemy
    from mlflow.store.db.utils import _upgrade_db

    engine = sqlalchemy.create_engine(f"sqlite:///{draft}")
    try:
        _upgrade_db(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()
