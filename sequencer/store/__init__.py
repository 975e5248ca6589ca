"""Keep a run: one module a store, all behind `protocol.Store`."""
