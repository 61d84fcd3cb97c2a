"""The pages about the project, and render.py, which renders those that are made from the program itself."""
