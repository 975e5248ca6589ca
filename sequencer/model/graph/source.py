"""What a graph run was begun with: where its workflow comes from, and how it was then.

Kept with the run. The workflow itself is read from its file each time, so that a change of
a prompt reaches the run; the copy is there to say what else was changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sequencer.frozen.base import Frozen, as_json
from sequencer.frozen.fields import Field
from sequencer.model.graph.graph import Graph
from sequencer.model.workflow import Workflow

_SAID_IN_FLOWCHARTS = {"timeout_s": "timeout", "continue_session": "mode"}
"""Fields of steps, and what they are called in the sections of a flowchart."""


class FlowSource(Frozen):
    """The content of ``flow.json``; frozen."""

    schema_version: Literal[1] = 1
    file: str | None = None
    """The workflow's file, relative to the project's folder if it lies in there; None: the
    workflow is configured, and found by its name."""
    state: dict[str, Any] = Field(default_factory=dict)
    """What the run's state began with in place of what the file says, by key."""
    workflow: Workflow
    """As the run knows it."""
    previous: Workflow | None = None
    """As it was before the newest `adopt`: who was killed in it has left a head of that one."""

    def as_of(self, digest: str) -> Workflow:
        """Return the workflow that has *digest*, as a head keeps it."""
        is_before = self.previous is not None and self.previous.digest() == digest
        return self.previous if is_before and self.previous is not None else self.workflow

    def to_json(self) -> bytes:
        """Return the file's content, without what is as ever."""
        text = self.model_dump_json(exclude_defaults=True, by_alias=True, indent=1)
        return (text + "\n").encode()


def with_state(workflow: Workflow, state: Mapping[str, Any]) -> Workflow:
    """Return *workflow* with *state* laid over what its own begins with; dots in keys nest.

    Raises:
        KeyError: the workflow's state has no such key.
    """
    graph = workflow.graph
    if graph is None or not state:
        return workflow
    begun = copied(graph.state)
    for key, value in state.items():
        *above, last = key.split(".")
        here: Any = begun
        for part in above:
            here = here[part] if isinstance(here, dict) else {}
        if not isinstance(here, dict) or last not in here:
            raise KeyError(key)
        here[last] = value
    new = graph.replace(state=begun)
    return Workflow(workflow.name, workflow.steps, kind="graph", graph=new)


def differences(before: Workflow, after: Workflow) -> list[str]:
    """Return what differs in a run's workflow, one line each, the digest's fields alone."""
    old, new = before.definition(), after.definition()
    found: list[str] = []
    is_flowchart = after.graph is not None and not after.graph.has_tasks
    said = _SAID_IN_FLOWCHARTS if is_flowchart else {}
    parts = ("nodes", "id"), ("steps", "name")
    for name, key in parts:
        found += _of_lists(name[:-1], _by(old, name, key), _by(new, name, key), said)
    found += _of_lists("edge", _edges(old), _edges(new))
    graphs = old.get("graph", {}), new.get("graph", {})
    for key in sorted({*graphs[0], *graphs[1]} - {"nodes", "edges"}):
        spec = Graph.model_fields[key]
        default = None if spec.is_required else spec.get_default()
        was, now = graphs[0].get(key, default), graphs[1].get(key, default)
        if was != now:
            found.append(f"{key}: {as_json(was).decode()} -> {as_json(now).decode()}")
    return found


def _by(definition: Mapping[str, Any], name: str, key: str) -> dict[str, Any]:
    held = definition.get("graph", {}) if name == "nodes" else definition
    return {entry[key]: entry for entry in held.get(name, ())}


def _edges(definition: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for edge in definition.get("graph", {}).get("edges", ()):
        label = f" [{edge['label']}]" if edge.get("label") else ""
        found[f"{edge['source']} -> {edge['target']}{label}"] = edge
    return found


def _of_lists(
    what: str, old: Mapping[str, Any], new: Mapping[str, Any], said: Mapping[str, str] | None = None
) -> list[str]:
    lines = [f"{what} {name!r} is gone" for name in old if name not in new]
    lines += [f"{what} {name!r} is new" for name in new if name not in old]
    for name in old:
        if name in new and old[name] != new[name]:
            keys = sorted({*old[name], *new[name]})
            changed = [key for key in keys if old[name].get(key) != new[name].get(key)]
            told = [(said or {}).get(key, key) for key in changed]
            lines.append(f"{what} {name!r} has a different {', '.join(told)}")
    order_old, order_new = ([n for n in one if n in new and n in old] for one in (old, new))
    if order_old != order_new:
        lines.append(f"the order of the {what}s is different")
    return lines


def copied(value: Any) -> Any:
    """Return *value* with maps and lists of its own."""
    if isinstance(value, Mapping):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def put(state: dict[str, Any], key: str, value: Any) -> None:
    """Put *value* into *state* at *key*; maps on the way are made, and other things replaced.

    >>> state = {"review": None}
    >>> put(state, "review.style", "fine")
    >>> state
    {'review': {'style': 'fine'}}
    """
    *above, last = key.split(".")
    here = state
    for part in above:
        if not isinstance(here.get(part), dict):
            here[part] = {}
        here = here[part]
    here[last] = value
