"""Stages `extract` and `views`: photographs -> grids, kept once."""
