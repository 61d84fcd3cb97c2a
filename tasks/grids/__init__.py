"""Stage `extract`: photographs -> grids, stored once."""
