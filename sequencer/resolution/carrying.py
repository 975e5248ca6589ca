"""Which output reaches a node: that of the nodes whose tokens were merged.

A node that does no work hands on what reached it, so that a marker or a decision between
two agents does not cut the one off from what the other has said.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sequencer.model.net.marking import Marking, Reference


def carried(marking: Marking, name: str) -> Reference | None:
    """Return where the output is that reached the present execution of *name*.

    One source: its output. Several: a map from their ids, in the order of their arrival; of a
    source that itself hands on such a map, what is in that. Maps within maps would grow
    twofold with each pair of markers that one other marker joins.
    """
    sources = marking.active[name].sources
    if len(sources) == 1:
        return marking.outputs.get(sources[0])
    found: dict[str, Any] = {}
    for source in sources:
        reference = marking.outputs.get(source)
        found.update(reference if isinstance(reference, dict) else {source: reference})
    return found or None


def value_of(reference: Reference | None, read: Callable[[str], str]) -> Any:
    """Return the text at *reference*, or a map of texts; empty where nothing was said."""
    if reference is None:
        return ""
    if isinstance(reference, str):
        return read(reference)
    return {name: value_of(inner, read) for name, inner in reference.items()}


def text_of(reference: Reference | None, read: Callable[[str], str]) -> str:
    """Return the same as a text; a map as JSON on one line."""
    value = value_of(reference, read)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
