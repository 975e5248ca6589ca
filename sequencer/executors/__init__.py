"""Executors perform one step; each has its own module and implements `protocol.Executor`."""
