"""How far from the physical floor the sequencer is, and where its peers are.

Run it from the checkout: ``python -m bench --help``; docs/reference/benchmarks.md explains
the rows. Nothing here is part of the package.
"""
