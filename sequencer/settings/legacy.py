"""Keys of hoidn/orchestration's orchestration.yaml that this program writes otherwise.

They load as they are: flat keys mean the nested ones, and keys about its own commits,
reports and spec files mean nothing here and are named once. A nested key wins over its
flat twin, as there.
"""

from __future__ import annotations

import re

from sequencer.documents.reader import Document, KeyPath
from sequencer.settings.sources import Layers, Source, flatten

FLAT_KEYS: dict[str, KeyPath] = {
    "router_enabled": ("router", "enabled"),
    "router_prompt": ("router", "prompt"),
    "router_review_every_n": ("router", "review_every_n"),
    "router_allowlist": ("router", "allowlist"),
    "router_mode": ("router", "mode"),
    "workflow_name": ("workflow", "name"),
    "workflow_review_every_n": ("workflow", "review_every_n"),
}
IGNORED_KEYS = frozenset(
    {
        "autocommit_whitelist",
        "doc_whitelist",
        "findings_file",
        "force_add_reports",
        "input_file",
        "prepull_auto_commit_docs",
        "report_extensions",
        "report_path_globs",
        "spec_bootstrap",
        "tmp_dir",
        "tolerate_doc_dirty",
        "tracked_output_extensions",
        "tracked_output_globs",
    }
)
_IGNORED_FAMILIES = re.compile(r"auto_?commit_[a-z_]+|max_[a-z_]+_bytes", re.ASCII)


def lay_file(layers: Layers, document: Document) -> None:
    """Lay what *document* says over *layers*, old spellings translated."""
    layers.document = document
    # Flat keys first, so that nested ones are laid over them wherever they stand in the file.
    for key, path in FLAT_KEYS.items():
        if key in document.data:
            layers.put(path, document.data[key], _source(document, (key,)), (key,))
    for key, value in document.data.items():
        if key in FLAT_KEYS:
            continue
        if key in IGNORED_KEYS or _IGNORED_FAMILIES.fullmatch(key):
            where = document.where((key,))
            layers.notices.append(f"{where}: {key!r} has no effect here")
        elif key == "workflow" and isinstance(value, str):
            source = _source(document, (key,))
            layers.put(("workflow", "name"), value, source, ("workflow",))
        else:
            for below, leaf in flatten(value, (key,)):
                layers.put(below, leaf, _source(document, below))


def inherit_cadence(layers: Layers) -> None:
    """Let the router's old cadence be the workflow's where that has none of its own."""
    old, new = ("router", "review_every_n"), ("workflow", "review_every_n")
    if new in layers.sources or old not in layers.sources:
        return
    layers.put(new, layers.values["router"]["review_every_n"], layers.sources[old], old)


def _source(document: Document, path: KeyPath) -> Source:
    line, _ = document.positions[path]
    return Source("file", document.file, line)
