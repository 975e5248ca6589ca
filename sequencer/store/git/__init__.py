"""A run that is shared through a git remote; see `store.GitStore`."""
