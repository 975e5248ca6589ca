"""What an answer decides: the last JSON object in its text with a decision, fenced or not.

Judges, flowcharts, routers and classifiers all read verdicts here. The prose around the object
never counts, and malformed JSON is not repaired. Reading takes linear time, however deeply the
text is nested and wherever it breaks off.

Not promised: that the agent means what it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

MAX_TEXT_CHARS = 256 * 1024
"""Only this much of an answer's end is read."""
DECISION_FIELDS = ("decision", "branch", "result")
"""Fields of an object that can hold its decision; the first one that holds a text counts."""
MARKS = "*_`\"'\u201c\u201d\u2018\u2019\u201e\u00ab\u00bb"
"""Markdown and quotation marks that may surround a word or a line."""
_TEXT = r'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
_OBJECT = re.compile(rf"\{{(?=\s*+(?:\}}|{_TEXT}\s*+:))")
"""A brace that starts an object: in prose, a key hardly ever follows a brace."""
_DECODER = json.JSONDecoder()
_ReadT = TypeVar("_ReadT")


def redact_json(value: Any, redact: Callable[[str], str]) -> Any:
    """Return *value*, plain JSON data, with *redact* applied to its text as JSON.

    If the redacted text is no longer JSON, return the text itself.
    """
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    redacted_text = redact(text)
    if redacted_text == text:
        return value
    try:
        return json.loads(redacted_text)
    except ValueError:
        return redacted_text


def read_last_object(
    text: str, read: Callable[[Mapping[str, Any]], _ReadT | None]
) -> _ReadT | None:
    """Return the last result of *read* that is not None, over the JSON objects in *text*.

    Objects inside another object don't count: a check in a longer report is not the verdict of
    the report. An object that breaks off is left out, with everything in it.

    >>> text = 'First {"n": 1}, then {"n": 2}, and {"m": 3}.'
    >>> read_last_object(text, lambda value: value.get("n"))
    2
    """
    text, position, last_object = text[-MAX_TEXT_CHARS:], 0, None
    while start := _OBJECT.search(text, position):
        try:
            value, position = _DECODER.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            # No character is read twice.
            position = max(error.pos, start.end())
        except (ValueError, RecursionError):
            # No report has such numbers or depths, and the end of the object is unknown.
            return None
        else:
            result = read(value)
            last_object = last_object if result is None else result
    return last_object


def find_decision(text: str) -> str | None:
    r"""Return the decision in *text*; None: it has no JSON object with a decision.

    >>> find_decision('It is fine:\n```json\n{"decision": "approve"}\n```\nThat is all.')
    'approve'
    >>> find_decision("I would approve.") is None
    True
    """
    return read_last_object(text, read_decision)


def read_decision(value: Any) -> str | None:
    """Return the decision of *value*, if it is a JSON object that has one."""
    if not isinstance(value, Mapping):
        return None
    candidates = (value.get(field) for field in DECISION_FIELDS)
    return next((candidate for candidate in candidates if isinstance(candidate, str)), None)
