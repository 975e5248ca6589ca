from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.net.rules import line
from sequencer.model.transitions import Event


@pytest.mark.parametrize(
    ("event", "node", "details", "expected"),
    [
        ("claimed", "a", {"from": []}, "start a"),
        ("claimed", "a", {"from": ["b"]}, "start a"),
        ("claimed", "a", {"from": ["c", "b"]}, "start a <- c+b"),
        ("claimed", "a", {}, "start a"),
        ("started", "m", {"from": ["x", "y", "z"]}, "start m <- x+y+z"),
        ("asked", "h", {"from": ["x"]}, "start h"),
        ("asked", "h", {"again": True}, "again h"),
        ("claimed", "a", {"retry": 3}, "retry a attempt 3"),
        ("claimed", "a", {"again": True}, "again a"),
        ("succeeded", "a", {}, "done a"),
        ("answered", "h", {"choice": "yes"}, "done h = yes"),
        ("passed", "m", {"choice": ""}, "done m = "),
        ("failed", "a", {"try": 2, "error": "boom"}, "fail a attempt 2: boom"),
        ("failed", "a", {"error": "no branch", "type": "X"}, "fail a: no branch"),
        ("failed", "a", {}, "fail a: "),
        ("looped", "a", {"to": "b", "number": 4}, "loop a -> b #4"),
        ("expired", "h", {}, "timeout h"),
        ("expired", "h", {"to": "x"}, "timeout h -> x"),
        ("diverted", "a", {"to": "h", "cancelled": []}, "onError -> h"),
        ("diverted", "a", {"to": "h", "cancelled": ["b", "c"]}, "onError -> h; cancelled b, c"),
        (
            "exhausted",
            "a",
            {"to": "b", "limit": 2, "cancelled": []},
            "maxIterations 2 exceeded at a -> b",
        ),
        (
            "exhausted",
            "a",
            {"to": "b", "limit": 0, "cancelled": ["c"]},
            "maxIterations 0 exceeded at a -> b; cancelled c",
        ),
        ("timed-out", "", {"cancelled": ["a"]}, "workflow timeout; cancelled a"),
        ("cancelled", "", {"cancelled": []}, "stopped by hand"),
    ],
)
def test_an_event_has_its_line(
    event: str, node: str, details: dict[str, Any], expected: str
) -> None:
    assert line(Event(event), node, details) == expected
    assert line(event, node, details) == expected
