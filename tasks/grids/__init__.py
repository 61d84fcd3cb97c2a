"""Stage `extract`: photographs -> grids, kept once."""
