"""What may stand in a file of a run: values of JSON, and what no writer of JSON makes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 9)
leaves = (
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | texts
)


def pairs(inner: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[dict[str, Any]]:
    # Half the time of st.dictionaries, which looks for a new key where one came twice.
    return st.lists(st.tuples(texts, inner), max_size=most).map(dict)


# Spelled out, because st.recursive takes three times as long; deep ones are made elsewhere.
flat = leaves | st.lists(leaves, max_size=2) | pairs(leaves, 2)
values = leaves | st.lists(flat, max_size=2) | pairs(flat, 2)
objects = pairs(values, 3)
# Fragments that no writer of JSON makes.
oddities = st.sampled_from(
    ["NaN", "-Infinity", "1e999", "9" * 40, "[" * 70 + "]" * 70, '"\\ud800"', "01", "{", "", "\0"]
)
