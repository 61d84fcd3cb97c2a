"""Prefect's settings, to be set before it is imported. Existing environment variables are not changed."""

import os
import tomllib
from pathlib import Path

_LOGGERS = "PREFECT_LOGGING_EXTRA_LOGGERS"
_SETTINGS = {
    # Send no usage data to anyone, unless the user asks for it.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Without batches, the server loses most task runs of a fast flow.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # Leases in memory are lost when the server ends; the next server then marks healthy runs as crashed.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # Delete what is older than 30 days, as `attend workspace prune` does. By default runs are kept for ever.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 86_400),
    "PREFECT_CLI_PROMPT": "false",
    # A flow run's log has the lines of this program's logger; those of threads outside the run stay on the terminal.
    _LOGGERS: "attend",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
# The stages print their progress on the terminal, so Prefect's log goes only to its API.
_QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}


def environment(workspace: Path) -> dict[str, str]:
    """Return this process's environment with the settings for a server and its worker, with files in the workspace."""
    # A workspace has its own PREFECT_HOME, where Prefect itself would not find the user's profile.
    _, _, profile = _active_profile()
    names = ("PREFECT_API_URL", "PREFECT_API_KEY")
    server: dict[str, str] = {name: str(profile[name]) for name in names if name in profile}
    settings = {"PREFECT_HOME": str(workspace / "prefect"), **_SETTINGS, **server, **os.environ}
    loggers = [name for name in settings[_LOGGERS].split(",") if name]
    settings[_LOGGERS] = ",".join(dict.fromkeys([*loggers, "attend"]))
    return settings


def profile_name() -> str:
    """Return the user's active Prefect profile and its file, for messages."""
    path, name, _ = _active_profile()
    return f"profile {name!r} in {path}"


def _active_profile() -> tuple[Path, str, dict[str, object]]:
    """Return the file of the user's Prefect profiles, and the name and settings of the active one."""
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    path = Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return path, "", {}
    name = str(os.environ.get("PREFECT_PROFILE") or content.get("active"))
    return path, name, content.get("profiles", {}).get(name, {})


def apply(workspace: Path) -> None:
    """Set the environment variables for flows that run in this process."""
    os.environ.update({**_QUIET, **environment(workspace)})
