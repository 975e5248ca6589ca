"""Read the files that people write: with limits, the position of each value, and all problems."""
