"""Storage of a run in files: the store, its journal, leases, lock, recovery and repair."""
