"""The context of a prompt: what a run adds to the text of a prompt file."""
