"""Cycles and procedures: one place, from step to step."""
