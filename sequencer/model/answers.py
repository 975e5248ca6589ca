"""What an answer decides: the last JSON object in its text that says so, with or without a fence.

The one reader of verdicts, for judges, flowcharts, routers and classifiers. Words of the prose
around the object never count, and nothing is repaired. The work grows with the text's length
only, however it nests or breaks off.

Not promised: that the agent means what it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

MAX_TEXT_CHARS = 256 * 1024
"""How much of an answer's end is looked at."""
DECISION_FIELDS = ("decision", "branch", "result")
"""Where an object says which way to go; the first that holds a text counts."""
MARKS = "*_`\"'\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb"
"""Markdown and quotation marks that may surround a word or a line."""
_TEXT = r'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_OBJECT = re.compile(rf"\{{(?=\s*+(?:\}}|{_TEXT}\s*+:))")
"""A brace that begins an object: one in prose is hardly ever followed by a key."""
_DECODER = json.JSONDecoder()
_ReadT = TypeVar("_ReadT")


def redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """Return *value*, as JSON has it, without secrets, as its text is.

    Where a secret ended in its grammar as JSON, it is the text itself.
    """
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    hidden = redact(text)
    if hidden == text:
        return value
    try:
        return json.loads(hidden)
    except ValueError:
        return hidden


def last_read(text: str, read: Callable[[Mapping[str, Any]], _ReadT | None]) -> _ReadT | None:
    """Return what *read* finds in the last JSON object of *text* where it finds anything.

    Objects that are a part of another object don't count: a check in a longer report is not
    the report's verdict. What breaks off is left out as far as it goes, with all that it holds.

    >>> last_read('First {"n": 1}, then {"n": 2}, and {"m": 3}.', lambda one: one.get("n"))
    2
    """
    text, place, last = text[-MAX_TEXT_CHARS:], 0, None
    while begun := _OBJECT.search(text, place):
        try:
            value, place = _DECODER.raw_decode(text, begun.start())
        except json.JSONDecodeError as error:
            # No character is read twice.
            place = max(error.pos, begun.end())
        except (ValueError, RecursionError):
            # Numbers or depths that no report has; where it ends can't be told.
            return None
        else:
            found = read(value)
            last = last if found is None else found
    return last


def decision_in(text: str) -> str | None:
    r"""Return which way *text* says to go, or None if it holds no object that says so.

    >>> decision_in('It is fine:\n```json\n{"decision": "approve"}\n```\nThat is all.')
    'approve'
    >>> decision_in("I would approve.") is None
    True
    """
    return last_read(text, decision_of)


def decision_of(value: Any) -> str | None:
    """Return which way *value* says to go, if it is a JSON object that says so."""
    if not isinstance(value, Mapping):
        return None
    said = (value.get(field) for field in DECISION_FIELDS)
    return next((one for one in said if isinstance(one, str)), None)
