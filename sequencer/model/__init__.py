"""Frozen data and pure transitions: no I/O, no clock, no environment."""
