"""The git store: a run's state and journal on a branch of their own."""
