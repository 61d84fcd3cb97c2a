"""The stages' work: plain functions from a config and upstream files to files. No Prefect in here."""

from tasks.common.cores import settle_threads

settle_threads()  # here, because all programs of the project come by before they load torch
