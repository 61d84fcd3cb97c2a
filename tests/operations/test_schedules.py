"""Schedules in words, as `attend up` prints them."""

from __future__ import annotations

from typing import Any

import pytest

from flows.operations.schedules import in_words


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"cron": "0 2 * * *", "timezone": "Etc/UTC"}, "every day at 02:00 UTC"),
        ({"cron": "30 * * * *", "timezone": "Etc/UTC"}, "every hour at 30 minutes past"),
        ({"cron": "0 6 * * 0", "timezone": "Europe/Berlin"}, "every Sunday at 06:00 Europe/Berlin"),
        ({"cron": "5 23 * * 1", "timezone": None}, "every Monday at 23:05 UTC"),
        ({"cron": "0 2 * * 7", "timezone": "UTC"}, "every Sunday at 02:00 UTC"),
        ({"cron": "*/5 8-17 * * 1-5", "timezone": "UTC"}, 'cron "*/5 8-17 * * 1-5" (UTC)'),
        ({"interval": 900.0, "timezone": "UTC"}, "every 900 s"),
    ],
)
def test_a_schedule_is_in_words(schedule: dict[str, Any], words: str) -> None:
    assert in_words(schedule) == words
