"""Metrics of runs, for Prometheus."""
