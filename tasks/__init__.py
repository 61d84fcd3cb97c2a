"""The work of the stages, without Prefect."""

from tasks.common.cores import configure_threads

configure_threads()  # here, because every program of the project imports this package before it loads torch
