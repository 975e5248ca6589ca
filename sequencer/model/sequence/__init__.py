"""Cycles and procedures: one step runs after another."""
