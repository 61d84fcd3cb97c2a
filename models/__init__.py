"""The captioner itself, in pure torch. A copy of it goes into every registered model.

Modules in this folder import each other relatively, because every registered model carries a copy of the folder
under a different package name (see tasks/registry/register_captioner.py).
"""
