"""Prefect's settings, set before it is imported. What the environment sets already is left alone."""

import os
from pathlib import Path

_SETTINGS = {
    # The first start makes a database and takes longer than Prefect's 20 s.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Nothing about a person's work is told to anyone, unless they ask for it.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Unbatched, the local server loses most task runs of a fast flow.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # In memory, leases die with the server, and it then crashes healthy runs.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # The stages tell their own story on the terminal; Prefect's log goes to its API.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LOGGERS_PREFECT_LEVEL": "CRITICAL",
    "PREFECT_CLI_PROMPT": "false",
}


def apply(workspace: Path) -> None:
    """Settings for flows that run in this process; Prefect keeps its own files in the workspace."""
    os.environ.setdefault("PREFECT_HOME", str(workspace / "prefect"))
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
