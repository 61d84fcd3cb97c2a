"""Before any work: a workspace that can be written, an MLflow store that answers, and what a crash left noticed."""

from __future__ import annotations

from tasks.config.schema import Config
from tasks.pipeline import sessions
from tasks.pipeline.workspace import Workspace
from tasks.registry.tracking import check_store, close_dead_runs


def prepare(config: Config) -> None:
    """Make the workspace and check the MLflow store; AttendError where either cannot be used."""
    workspace = Workspace(config.workspace)
    workspace.prepare()
    check_store(config.workspace)
    notice_crashes(workspace)


def notice_crashes(workspace: Workspace) -> None:
    """Make the files of a run that was killed suspect, and end its MLflow run."""
    sessions.notice_crashes(workspace)
    close_dead_runs(workspace.root)
