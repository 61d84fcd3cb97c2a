"""Prefect's settings, set before it is imported. What the environment sets already is left alone."""

import os
from pathlib import Path

_SETTINGS = {
    # Nothing about a person's work is told to anyone, unless they ask for it.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Unbatched, the server loses most task runs of a fast flow.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # In memory, leases die with the server, and it then crashes healthy runs.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_CLI_PROMPT": "false",
}
# The stages tell their own story on the terminal; Prefect's log goes to its API alone.
_QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}


def environment(workspace: Path) -> dict[str, str]:
    """This process's environment with the settings of a server and its worker; their files are in the workspace."""
    return {"PREFECT_HOME": str(workspace / "prefect"), **_SETTINGS, **os.environ}


def apply(workspace: Path) -> None:
    """Settings for flows that run in this process."""
    os.environ.update({**_QUIET, **environment(workspace)})
