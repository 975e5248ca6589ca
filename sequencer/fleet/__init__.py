"""The same run on Temporal: many machines, many runs, one promise."""
