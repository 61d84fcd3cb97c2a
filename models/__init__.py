"""The captioner itself, in pure torch: backbones, attention, decoders, search.

Modules in this folder import each other relatively, because every registered model carries a copy of the folder
under a different package name (see tasks/registry/register_captioner.py).
"""
