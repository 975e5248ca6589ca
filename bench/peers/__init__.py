"""The same things done by other programs; each runs in an interpreter of its own.

Every ``*_step`` module is a child (see `bench.serving`) that gets a folder and answers
``{"count": N}`` with the seconds of each of N durable no-op steps. Peers are set up the way
that is fastest for them while an accepted step survives a power loss.
"""
