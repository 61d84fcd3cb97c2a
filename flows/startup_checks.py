"""Checks before any work: the workspace can be written, the MLflow store answers, and no crash goes unnoticed."""

from __future__ import annotations

from tasks.config.schema import Config
from tasks.pipeline import sessions
from tasks.pipeline.workspace import Workspace
from tasks.registry.runs import close_dead_runs
from tasks.registry.tracking import check_store


def prepare(config: Config) -> None:
    """Create the workspace, check the MLflow store, and handle crashed runs.

    Raise AttendError if the workspace or the store cannot be used.
    """
    workspace = Workspace(config.workspace)
    workspace.prepare()
    check_store(config.workspace)
    notice_crashes(workspace)


def notice_crashes(workspace: Workspace) -> None:
    """Mark the workspace's files as suspect if a run was killed, and end that run in MLflow."""
    sessions.notice_crashes(workspace)
    close_dead_runs(workspace.root)
