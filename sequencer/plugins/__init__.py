"""Everything that the core can do without. Each registers itself; the core imports none."""
