"""Stage `register`: all artifacts -> a version in MLflow."""
