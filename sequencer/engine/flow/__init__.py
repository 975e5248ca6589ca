"""Runs of graphs: several nodes at once, in one process or in many."""
