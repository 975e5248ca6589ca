"""Perform one step: one module an executor, all behind `protocol.Executor`."""
