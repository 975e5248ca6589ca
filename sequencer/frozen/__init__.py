"""Data classes with the interface of pydantic that read valid values without loading pydantic.

They read everything that people write, and the heads and records of runs. `base` has the class,
`fields` the declarations of fields, and `by_pydantic` asks pydantic about a value that looks
invalid. Why this package exists: docs/decisions/0002-dependencies.md.
"""
