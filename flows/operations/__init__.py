"""Prefect flows, a local run, servers and clusters."""
