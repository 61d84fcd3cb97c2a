"""Measurements of the project: each module is a program of its own, see README.md."""

import tasks  # noqa: F401 -- sets how threads wait, which is right only before torch is loaded
from tasks.common.log import show_log

show_log()
