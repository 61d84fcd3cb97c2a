"""Benchmarks of the project. Each module is a program; see README.md."""

import tasks  # noqa: F401 -- sets how threads wait, which is right only before torch is loaded
from tasks.common.log import show_log

show_log()
