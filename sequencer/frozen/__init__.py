"""Data classes with the interface of pydantic that read right values without loading it.

Everything that people write, and the heads and records of runs, is read by them. `base` has the
class, `fields` what it says about its fields, and `by_pydantic` asks pydantic about a value that
looks wrong. Why there is such a package: docs/decisions/0002-dependencies.md.
"""
