"""A captioner's files: the bundle that MLflow keeps, for each runtime, and the exported folder."""
