"""The work of the stages: plain functions that turn a config and upstream files into files, without Prefect."""

from tasks.common.cores import configure_threads

configure_threads()  # here, because every program of the project imports this package before it loads torch
