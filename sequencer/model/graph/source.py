"""What a graph run was started with: where its workflow comes from, and a copy of it.

Stored with the run. The workflow itself is read from its file each time, so that a changed prompt
reaches the run; the copy only serves to find what else has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sequencer.frozen.base import Frozen, encode_json
from sequencer.frozen.fields import Field
from sequencer.model.graph.graph import Graph
from sequencer.model.workflow import Workflow

_NAMES_IN_FLOWCHARTS = {"timeout_s": "timeout", "continue_session": "mode"}
"""Fields of steps -> their names in the sections of a flowchart."""


class FlowSource(Frozen):
    """The content of ``flow.json``; frozen."""

    schema_version: Literal[1] = 1
    file: str | None = None
    """The workflow's file, relative to the project's folder if it is inside; None: the workflow is
    configured, and found by its name."""
    state: dict[str, Any] = Field(default_factory=dict)
    """Values that replaced the file's at the start of the run, by key of the state."""
    workflow: Workflow
    """The workflow that the run uses."""
    previous: Workflow | None = None
    """The workflow before the newest `adopt`: after a crash, the head may still refer to it."""

    def find_workflow(self, digest: str) -> Workflow:
        """Return the workflow that has *digest*, which is from a head."""
        is_before = self.previous is not None and self.previous.digest() == digest
        return self.previous if is_before and self.previous is not None else self.workflow

    def to_json(self) -> bytes:
        """Return the content of the file without default values."""
        text = self.model_dump_json(exclude_defaults=True, by_alias=True, indent=1)
        return (text + "\n").encode()


def with_state(workflow: Workflow, state: Mapping[str, Any]) -> Workflow:
    """Return *workflow* with the values of *state* in its initial state; dots in keys nest.

    Raises:
        KeyError: the workflow's state has no such key.
    """
    graph = workflow.graph
    if graph is None or not state:
        return workflow
    initial = copy_nested(graph.state)
    for key, value in state.items():
        *parents, last_key = key.split(".")
        parent: Any = initial
        for part in parents:
            parent = parent[part] if isinstance(parent, dict) else {}
        if not isinstance(parent, dict) or last_key not in parent:
            raise KeyError(key)
        parent[last_key] = value
    new_graph = graph.replace(state=initial)
    return Workflow(workflow.name, workflow.steps, kind="graph", graph=new_graph)


def describe_differences(before: Workflow, after: Workflow) -> list[str]:
    """Return one line for each difference between two workflows in fields of the digest."""
    old_definition, new_definition = before.definition(), after.definition()
    lines: list[str] = []
    is_flowchart = after.graph is not None and not after.graph.has_tasks
    names = _NAMES_IN_FLOWCHARTS if is_flowchart else {}
    parts = ("nodes", "id"), ("steps", "name")
    for name, key in parts:
        lines += _describe_list_changes(
            name[:-1],
            _index_by_key(old_definition, name, key),
            _index_by_key(new_definition, name, key),
            names,
        )
    lines += _describe_list_changes(
        "edge", _index_edges(old_definition), _index_edges(new_definition)
    )
    graphs = old_definition.get("graph", {}), new_definition.get("graph", {})
    for key in sorted({*graphs[0], *graphs[1]} - {"nodes", "edges"}):
        spec = Graph.model_fields[key]
        default = None if spec.is_required else spec.get_default()
        old_value, new_value = graphs[0].get(key, default), graphs[1].get(key, default)
        if old_value != new_value:
            lines.append(
                f"{key}: {encode_json(old_value).decode()} -> {encode_json(new_value).decode()}"
            )
    return lines


def _index_by_key(definition: Mapping[str, Any], name: str, key: str) -> dict[str, Any]:
    parent = definition.get("graph", {}) if name == "nodes" else definition
    return {entry[key]: entry for entry in parent.get(name, ())}


def _index_edges(definition: Mapping[str, Any]) -> dict[str, Any]:
    edges = {}
    for edge in definition.get("graph", {}).get("edges", ()):
        label = f" [{edge['label']}]" if edge.get("label") else ""
        edges[f"{edge['source']} -> {edge['target']}{label}"] = edge
    return edges


def _describe_list_changes(
    noun: str,
    old_items: Mapping[str, Any],
    new_items: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
) -> list[str]:
    lines = [f"{noun} {name!r} is gone" for name in old_items if name not in new_items]
    lines += [f"{noun} {name!r} is new" for name in new_items if name not in old_items]
    for name in old_items:
        if name in new_items and old_items[name] != new_items[name]:
            keys = sorted({*old_items[name], *new_items[name]})
            changed_keys = [
                key for key in keys if old_items[name].get(key) != new_items[name].get(key)
            ]
            labels = [(names or {}).get(key, key) for key in changed_keys]
            lines.append(f"{noun} {name!r} differs in {', '.join(labels)}")
    old_order, new_order = (
        [item_name for item_name in definition if item_name in new_items and item_name in old_items]
        for definition in (old_items, new_items)
    )
    if old_order != new_order:
        lines.append(f"the order of the {noun}s is different")
    return lines


def copy_nested(value: Any) -> Any:
    """Return a copy of *value* with copies of its maps and lists."""
    if isinstance(value, Mapping):
        return {key: copy_nested(item) for key, item in value.items()}
    return [copy_nested(item) for item in value] if isinstance(value, (list, tuple)) else value


def set_nested(state: dict[str, Any], key: str, value: Any) -> None:
    """Set *key* of *state* to *value*; create missing maps on the path, and replace other values.

    >>> state = {"review": None}
    >>> set_nested(state, "review.style", "fine")
    >>> state
    {'review': {'style': 'fine'}}
    """
    *parents, last_key = key.split(".")
    parent = state
    for part in parents:
        if not isinstance(parent.get(part), dict):
            parent[part] = {}
        parent = parent[part]
    parent[last_key] = value
