"""Files that people write: read with limits, every value with its place, all problems at once."""
