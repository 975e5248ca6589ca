"""Requests: read an issue, choose a procedure, start a run."""
