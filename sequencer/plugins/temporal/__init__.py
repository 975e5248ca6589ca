"""Runs on a Temporal server: the same steps on many machines."""
