"""MLflow's store: its runs, its versions and the embedded database."""
