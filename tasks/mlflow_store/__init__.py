"""MLflow's store: its runs, its registered versions and the embedded database."""
