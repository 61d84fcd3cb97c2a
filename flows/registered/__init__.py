"""Captioning, scoring and comparing with registered models."""
