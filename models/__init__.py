"""The captioner itself, in pure torch: backbones, attention, decoders, search.

Everything in here is imported relatively: a registered model carries a copy of this folder under a
name of its own (see tasks/registry/registration.py).
"""
