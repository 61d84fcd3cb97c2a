"""Prefect flows, local runs, servers and clusters."""
