"""Requests: where they come from, of what kind they are, and which procedure they get."""
