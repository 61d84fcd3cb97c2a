"""Stages in general: which ones are stale, how one runs, and where artifacts are."""
