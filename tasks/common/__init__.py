"""Code shared by all stages: errors, files, progress, object storage."""
