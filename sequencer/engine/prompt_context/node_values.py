"""What a node's prompt may ask for: the state, what reached the node, what others said.

References are taken when the node starts, texts are read when a prompt asks for them; a
prompt that asks for nothing costs nothing. What is inserted is never looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct

from sequencer.model.graph.graph import Graph, Node
from sequencer.model.graph.marking import Marking, Reference, carried, value_of
from sequencer.model.graph.source import copied, put
from sequencer.model.head import Head
from sequencer.workflows import prompts as templates

Read = Callable[[str], str]
"""The text of one output, by its reference."""


class NodeValues(Struct, frozen=True):
    """The values of one execution, as they were when it started."""

    graph: Graph
    node: Node
    read: Read
    reached: Reference | None
    """Where the output is that reached the node."""
    outputs: Mapping[str, Reference]
    keys: Mapping[str, str]
    own: Mapping[str, Any]
    """What the program keeps in the state itself."""
    json_nodes: frozenset[str] = frozenset()
    """Nodes whose output goes into the state as what its JSON means."""

    def compose(self, text: str) -> str:
        """Return *text* with its templates filled in.

        Raises:
            MissingValue: one names something that is not there.
        """
        return templates.render(text, self.value, templates.GRAPH_ROOTS)

    def compose_prompt(self, text: str) -> str:
        """Return the prompt that *text* makes, with the inputs that it does not have behind it.

        An author who writes an input down wants the agent to have it, asked for or not.

        Raises: see `compose`.
        """
        asked = set(templates.names(text, templates.GRAPH_ROOTS))
        blocks = [self.compose(text)]
        for key, value in self.node.input.items():
            if not _has_input(asked, key, value):
                shown = templates.as_text(self._input(value))
                blocks += [f"## {key}\n\n{shown.strip()}"] if shown.strip() else []
        if len(blocks) > 1:
            blocks.insert(1, "# Input")
        return "\n\n".join(blocks)

    def value(self, path: tuple[str, ...]) -> Any:
        """Return what is at *path*, whose first part is a root.

        Raises:
            KeyError: there is nothing; the message says what there is.
        """
        root, rest = path[0], path[1:]
        if root == "output":
            return templates.look_up(value_of(self.reached, self.read), rest)
        if root == "nodes":
            return self._of_node(rest)
        if root == "input":
            return templates.look_up(self._input(self.node.input), rest)
        return templates.look_up(self._state(rest), rest) if rest else self._state(())

    def _of_node(self, path: tuple[str, ...]) -> Any:
        for length in range(len(path), 0, -1):
            name = ".".join(path[:length])
            if name in self.graph.by_id:
                break
        else:
            raise KeyError(f"there is no node {'.'.join(path[:1])!r}")
        rest = path[length:]
        if not rest or rest[0] != "output":
            raise KeyError("write {{nodes.ID.output}}")
        return templates.look_up(value_of(self.outputs.get(name), self.read), rest[1:])

    def _input(self, value: Any) -> Any:
        """Return *value* with the templates in its texts filled in."""
        if isinstance(value, str):
            return templates.render(value, self.value, templates.GRAPH_ROOTS[:3])
        if isinstance(value, Mapping):
            return {key: self._input(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._input(inner) for inner in value]
        return value

    def _state(self, asked: tuple[str, ...]) -> dict[str, Any]:
        """Return the state as far as *asked* needs it; outputs of other keys are not read."""
        state = copied(self.graph.state)
        for key, name in self.keys.items():
            parts = tuple(key.split("."))
            shorter = min(len(parts), len(asked))
            if parts[:shorter] == asked[:shorter]:
                put(state, key, self._said(name))
        return {**state, **self.own}

    def _said(self, name: str) -> Any:
        text = value_of(self.outputs.get(name), self.read)
        if name in self.json_nodes and isinstance(text, str):
            return templates.parsed(text)
        return text


def _has_input(asked: Collection[tuple[str, ...]], key: str, value: Any) -> bool:
    """Return whether a prompt that asks for the paths *asked* has the input *key* already."""
    own = ("input", *key.split("."))
    if ("input",) in asked or any(path[: len(own)] == own for path in asked):
        return True
    found = set(templates.names(value, templates.GRAPH_ROOTS)) if isinstance(value, str) else set()
    return bool(found) and found <= set(asked)


def values_of(
    graph: Graph,
    name: str,
    marking: Marking,
    text: str,
    read: Read,
    *,
    json_nodes: frozenset[str] = frozenset(),
    head: Head | None = None,
) -> NodeValues | None:
    """Return the values for the execution of *name* that has begun; None: *text* asks for none.

    *head* is the run's, for what the state tells of the run itself.
    """
    node = graph.by_id[name]
    asked = {path[0] for path in templates.names(text, templates.GRAPH_ROOTS)}
    if not asked and node.task is None and not node.input:
        return None
    needs_outputs = bool(asked - {"output"})
    return NodeValues(
        graph,
        node,
        read,
        reached=carried(marking, name),
        # Copies: the marking goes on while the prompt is composed.
        outputs=dict(marking.outputs) if needs_outputs else {},
        keys=dict(marking.keys) if needs_outputs else {},
        own=_own(name, marking, head) if needs_outputs else {},
        json_nodes=json_nodes,
    )


def _at_once(name: str, marking: Marking) -> list[str]:
    """Return the nodes that are worked on with *name*, itself included; none if it is alone.

    Those that may start count as well: how many do at once is for each process to say.
    """
    graph = marking.graph
    ready = [one for one in marking.waiting if marking.may_start(one)]
    found = {name, *marking.active, *ready}
    names = sorted((one for one in found if graph.by_id[one].works), key=graph.order.__getitem__)
    return names if len(names) > 1 else []


def _own(name: str, marking: Marking, head: Head | None) -> dict[str, Any]:
    """Return what a run keeps in the state under names of its own."""
    found: dict[str, Any] = {
        "_workflow_id": "" if head is None else head.workflow_name,
        "_started_at": None if head is None else head.begun_at,
        "_iteration_count": marking.iterations,
        "_current_node": name,
        "_completed_nodes": list(marking.done),
        "_pending_parallel": _at_once(name, marking),
    }
    return found if marking.error is None else {**found, "_error": marking.error}
