"""The stages' work: plain functions from a config and upstream files to files. No Prefect in here."""
