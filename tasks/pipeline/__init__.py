"""Stages in general: what is stale, how one runs, where artifacts are."""
