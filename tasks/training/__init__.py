"""Stages `train`, `tune` and `self_critical`: grids and captions -> weights."""
