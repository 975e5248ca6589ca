"""Workflows: how they are written, found and read."""
