"""Graphs that are written inside orchestration.yaml, in entries of ``workflows:``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sequencer import extensions
from sequencer.files.yamlfile import KeyPath
from sequencer.project.schema import Schema
from sequencer.project.sections import LocatedError
from sequencer.project.sources import Layers
from sequencer.workflows.definitions import inline_format
from sequencer.workflows.finding import GraphFile, InlineFormat, Sections


def inline_graphs(
    schema: Schema, sections: Sections, layers: Layers, file: Path, found: list[LocatedError]
) -> dict[str, GraphFile]:
    """Return the graphs in *schema*, by workflow; problems are added to *found*.

    *file* is the configuration file.
    """
    graphs: dict[str, GraphFile] = {}
    for name, inline, parts in _find_inline_parts(layers):

        def where(path: KeyPath, parent: KeyPath = ("workflows", name)) -> str:
            return layers.format_location((*parent, *path))

        errors = inline.problems(parts, sections, where)
        found += [(("workflows", name, *path), error) for path, error in errors]
        # An entry that is invalid by itself is missing from the schema, and was reported before.
        entry = schema.workflows.get(name)
        if entry is not None and getattr(entry, inline.key) and not errors:
            values = {key: getattr(entry, key) for key in inline.kinds}
            graphs[name] = inline.load(name, values, sections, file=file, where=where)
    return graphs


def _find_inline_parts(layers: Layers) -> Iterator[tuple[str, InlineFormat, list[Any]]]:
    """Yield (workflow, format, parts as written) for each graph, including refused ones."""
    workflows = layers.values.get("workflows")
    keys = extensions.OURS[extensions.WORKFLOW_KEYS]
    for name, entry in workflows.items() if isinstance(workflows, dict) else ():
        for key in keys:
            if isinstance(entry, dict) and isinstance(parts := entry.get(key), list):
                inline = inline_format(key)
                if inline.key == key:
                    yield name, inline, parts
