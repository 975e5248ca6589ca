"""Which output reaches a node, and how a run's values are filled into a prompt.

One pass: what is inserted is never looked at again, so that an agent's output or a
request can't ask for other values. Only the roots in `ROOTS`, or `GRAPH_ROOTS`, are templates; any
other ``{{…}}`` is text, as it is for whoever writes about templates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from sequencer.errors import StepFailed

ROOTS = ("request", "output", "steps", "feedback", "validation", "run")
"""In the prompts of procedures."""
GRAPH_ROOTS = ("state", "output", "nodes", "input")
"""In the prompts of graphs."""
_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_][\w.\-]*)\s*\}\}")
MAX_DEPTH = 10


class MissingValue(StepFailed):
    """A template names a value that is not there; no agent was run."""


def names(text: str, roots: Collection[str] = ROOTS) -> Iterator[tuple[str, ...]]:
    """Yield the paths that *text* asks for, in order.

    >>> list(names("{{request.title}} {{ other }} {{output}}"))
    [('request', 'title'), ('output',)]
    """
    for found in _TEMPLATE.finditer(text):
        path = tuple(found[1].split("."))
        if path[0] in roots:
            yield path


def render(
    text: str, value_of: Callable[[tuple[str, ...]], Any], roots: Collection[str] = ROOTS
) -> str:
    """Return *text* with each template replaced by what *value_of* says about its path.

    A text goes in as it is, None as nothing, everything else as JSON on one line.

    >>> render("{{output}}, {{nobody}}", {("output",): "{{run.id}}"}.__getitem__)
    '{{run.id}}, {{nobody}}'

    Raises:
        MissingValue: *value_of* raised KeyError.
    """

    def fill(found: re.Match[str]) -> str:
        path = tuple(found[1].split("."))
        if path[0] not in roots:
            return found[0]
        try:
            return as_text(value_of(path))
        except KeyError as error:
            raise MissingValue(
                f"the prompt asks for {{{{{found[1]}}}}}, and there is no such value",
                hint=str(error.args[0]) if error.args else None,
            ) from None

    return _TEMPLATE.sub(fill, text)


def as_text(value: Any) -> str:
    """Return how *value* stands in a prompt."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def look_up(value: Any, path: tuple[str, ...]) -> Any:
    """Return what is at *path* in nested maps and lists.

    A text that is JSON, also in a fence, may be looked into.

    Raises:
        KeyError: there is nothing; the message lists what there is.
    """
    here = value
    if len(path) > MAX_DEPTH:
        raise KeyError(f"at most {MAX_DEPTH} parts are looked into")
    for part in path:
        if isinstance(here, str):
            here = parsed(here)
        here = _below(here, part)
    return here


def _below(here: Any, part: str) -> Any:
    if isinstance(here, Mapping):
        if part in here:
            return here[part]
        known = ", ".join(sorted(map(str, here))[:20]) or "nothing"
        raise KeyError(f"there is no {part!r}; known: {known}")
    if isinstance(here, (list, tuple)):
        if part.isdecimal() and len(part) < MAX_DEPTH and int(part) < len(here):
            return here[int(part)]
        raise KeyError(f"there is no item {part!r} among {len(here)}")
    raise KeyError(f"there is nothing below it that could be {part!r}")


def parsed(text: str) -> Any:
    """Return the JSON that *text* is, with or without a fence around it.

    Raises:
        KeyError: it is none.
    """
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```":  # noqa: PLR2004 - fence, content, fence
        lines = lines[1:-1]
    try:
        return json.loads("\n".join(lines))
    except (ValueError, RecursionError):
        raise KeyError("the output is no JSON that could be looked into") from None
