"""Errors, files, progress, object storage: what all stages share."""
