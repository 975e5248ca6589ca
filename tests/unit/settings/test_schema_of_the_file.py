"""The schema in the package is the one that is made of the classes and the page."""

from __future__ import annotations

from tests.unit.settings.schema_of_the_file import FILE, made


def test_the_packaged_schema_is_built_from_the_classes_and_the_page() -> None:
    assert FILE.read_text(encoding="utf-8") == made(), f"run python -m {made.__module__}"
