"""The documentation, and render.py, which generates parts of it from the code."""
