"""What a pattern of paths means, and what it does not."""

from __future__ import annotations

import time

import pytest
from hypothesis import strategies as st

from sequencer.git.tree import Patterns


@pytest.mark.parametrize(
    ("pattern", "path", "means"),
    [
        ("input.md", "input.md", True),
        ("input.md", "docs/input.md", False),
        ("input.md", "input.md/x", False),
        ("*.md", "a.md", True),
        ("*.md", ".a.md", True),
        ("*.md", "docs/a.md", False),
        ("**/*.md", "a.md", True),
        ("**/*.md", "a/b/c.md", True),
        ("plans/**/*.md", "plans/a.md", True),
        ("plans/**/*.md", "plans/x/y/a.md", True),
        ("plans/**/*.md", "other/plans/a.md", False),
        ("plans/**", "plans/x/y", True),
        ("plans/**", "plans", False),
        ("plans/", "plans/x/y", True),
        ("plans/", "plans", False),
        ("plans/", "planss/x", False),
        ("plans", "plans/x", False),
        ("./plans/*", "plans/x", True),
        ("plans//x", "plans/x", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a*c", "a/b/c", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("[", "[", True),
        ("a.c", "abc", False),
        ("A.md", "a.md", False),
        ("**", "any/thing", True),
        ("**/**/x", "x", True),
        ("a/**/**/x", "a/x", True),
        ("a/**/b/**/c", "a/b/1/2/c", True),
        ("a/**/b/**/c", "a/1/2/c", False),
        ("we\nird*", "we\nird name", True),
        ("nested", "nested/", True),
        ("caf\udce9", "caf\udce9", True),
    ],
)
def test_what_a_pattern_means(pattern: str, path: str, means: bool) -> None:
    assert (Patterns([pattern]).match(path) == pattern) is means


def test_many_stars_take_no_time() -> None:
    began = time.perf_counter()
    assert Patterns(["**/" * 60 + "x"]).match("/".join("a" * 200)) is None
    assert Patterns(["*a" * 30 + "b"]).match("a" * 240) is None
    assert time.perf_counter() - began < 2


LETTERS = st.characters(exclude_characters="/\0*?[]", codec="utf-8")
names = st.text(LETTERS, min_size=1)
paths = st.lists(names.filter(lambda name: name not in (".", "..")), min_size=1, max_size=5)
