"""The schedules of the deployments on Prefect's server, in words."""

from __future__ import annotations

import calendar
import re
from typing import Any

from flows.operations.flow_runs import ask


def schedule_lines(api: str) -> list[str]:
    """Return a line for each deployment: its times and its config. api: the URL of the server's API."""
    lines = []
    for deployment in sorted(ask(f"{api}/deployments/filter", {}), key=lambda row: str(row["name"])):
        times = [in_words(item["schedule"]) for item in deployment["schedules"] if item["active"]]
        config = deployment["parameters"].get("preset")
        when = " and ".join(times) or "not scheduled"
        lines.append(f"{deployment['name']}: {when}{f' ({config})' if config and times else ''}")
    return lines


def in_words(schedule: dict[str, Any]) -> str:
    """Return a Prefect schedule in words, such as `every day at 02:00 UTC`; an unknown kind unchanged."""
    cron, zone = str(schedule.get("cron", "")), str(schedule.get("timezone") or "UTC").removeprefix("Etc/")
    if match := re.fullmatch(r"(\d+) \* \* \* \*", cron):
        return f"every hour at {int(match[1])} minutes past"
    if match := re.fullmatch(r"(\d+) (\d+) \* \* ([0-7*])", cron):
        # Cron counts days from Sunday, which is 0 and 7; Python counts from Monday.
        day = "day" if match[3] == "*" else calendar.day_name[(int(match[3]) - 1) % 7]
        return f"every {day} at {int(match[2]):02d}:{int(match[1]):02d} {zone}"
    if cron:
        return f'cron "{cron}" ({zone})'
    return f"every {schedule['interval']:g} s" if "interval" in schedule else str(schedule)
