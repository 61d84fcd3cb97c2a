"""The pipeline, Prefect, the command line and the servers."""
