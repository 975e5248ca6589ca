"""States of graphs: maps in maps."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.net.source import copied, put


def test_a_copy_has_nothing_in_common() -> None:
    state: dict[str, Any] = {"a": {"b": [1, {"c": 2}]}, "d": "x", "e": None}
    found = copied(state)
    found["a"]["b"][1]["c"] = 3
    found["a"]["b"].append(4)
    assert state == {"a": {"b": [1, {"c": 2}]}, "d": "x", "e": None}


@pytest.mark.parametrize(
    ("state", "key", "after"),
    [
        ({}, "a", {"a": 1}),
        ({}, "a.b.c", {"a": {"b": {"c": 1}}}),
        ({"a": {"x": 0}}, "a.b", {"a": {"x": 0, "b": 1}}),
        ({"a": None}, "a.b", {"a": {"b": 1}}),
        ({"a": "text"}, "a.b", {"a": {"b": 1}}),
        ({"a": {"b": 0}}, "a", {"a": 1}),
    ],
)
def test_a_value_is_put_where_its_key_leads(
    state: dict[str, Any], key: str, after: dict[str, Any]
) -> None:
    put(state, key, 1)
    assert state == after
