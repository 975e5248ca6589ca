"""The code of a run in git: checkouts, worktrees, commits and merges."""
