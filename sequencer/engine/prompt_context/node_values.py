"""The values that templates in a node's prompt can name: the state, the inputs, the outputs.

References to outputs are copied when the node starts, and their texts are read when a prompt
asks for them. A prompt that asks for nothing costs nothing. Inserted text is a quotation:
templates in it are not filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct

from sequencer.model.graph.graph import Graph, Node
from sequencer.model.graph.marking import Marking, Reference, find_incoming_output, read_value
from sequencer.model.graph.source import copy_nested, set_nested
from sequencer.model.head import Head
from sequencer.workflows import prompts as templates

Read = Callable[[str], str]
"""A function from the reference of an output to its text."""


class NodeValues(Struct, frozen=True):
    """The values of one execution of a node, as they were when it started."""

    graph: Graph
    node: Node
    read: Read
    reached: Reference | None
    """The output that reached the node over its edge; None: there is none."""
    outputs: Mapping[str, Reference]
    """By node."""
    keys: Mapping[str, str]
    """Key of the state -> the node whose output it holds."""
    run_values: Mapping[str, Any]
    """The values that the program itself keeps in the state."""
    json_nodes: frozenset[str] = frozenset()
    """Nodes whose output is parsed as JSON before it goes into the state."""

    def compose(self, text: str) -> str:
        """Return *text* with its templates filled in.

        Raises:
            MissingValue: a template names a value that does not exist.
        """
        return templates.render(text, self.value, templates.GRAPH_ROOTS)

    def compose_prompt(self, text: str) -> str:
        """Return the prompt for *text*, followed by the inputs that it does not name.

        An author who declares an input wants the agent to get it, whether the prompt asks or not.

        Raises: see `compose`.
        """
        paths = set(templates.iter_template_paths(text, templates.GRAPH_ROOTS))
        blocks = [self.compose(text)]
        for key, value in self.node.input.items():
            if not _has_input(paths, key, value):
                input_text = templates.as_text(self._fill_input(value))
                blocks += [f"## {key}\n\n{input_text.strip()}"] if input_text.strip() else []
        if len(blocks) > 1:
            blocks.insert(1, "# Input")
        return "\n\n".join(blocks)

    def value(self, path: tuple[str, ...]) -> Any:
        """Return the value at *path*, whose first part is a root.

        Raises:
            KeyError: there is no such value; the message lists the values.
        """
        root, subpath = path[0], path[1:]
        if root == "output":
            return templates.look_up(read_value(self.reached, self.read), subpath)
        if root == "nodes":
            return self._find_node_value(subpath)
        if root == "input":
            return templates.look_up(self._fill_input(self.node.input), subpath)
        return templates.look_up(self._state(subpath), subpath) if subpath else self._state(())

    def _find_node_value(self, path: tuple[str, ...]) -> Any:
        # A node's id may contain dots, so the longest match wins.
        for length in range(len(path), 0, -1):
            name = ".".join(path[:length])
            if name in self.graph.by_id:
                break
        else:
            raise KeyError(f"there is no node {'.'.join(path[:1])!r}")
        subpath = path[length:]
        if not subpath or subpath[0] != "output":
            raise KeyError("write {{nodes.ID.output}}")
        return templates.look_up(read_value(self.outputs.get(name), self.read), subpath[1:])

    def _fill_input(self, value: Any) -> Any:
        """Return *value* with the templates in its texts filled in."""
        if isinstance(value, str):
            return templates.render(value, self.value, templates.GRAPH_ROOTS[:3])
        if isinstance(value, Mapping):
            return {key: self._fill_input(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._fill_input(item) for item in value]
        return value

    def _state(self, path: tuple[str, ...]) -> dict[str, Any]:
        """Return the part of the state that *path* needs; outputs of other keys are not read."""
        state = copy_nested(self.graph.state)
        for key, name in self.keys.items():
            parts = tuple(key.split("."))
            length = min(len(parts), len(path))
            if parts[:length] == path[:length]:
                set_nested(state, key, self._output(name))
        return {**state, **self.run_values}

    def _output(self, name: str) -> Any:
        text = read_value(self.outputs.get(name), self.read)
        if name in self.json_nodes and isinstance(text, str):
            return templates.parse_loose_json(text)
        return text


def _has_input(paths: Collection[tuple[str, ...]], key: str, value: Any) -> bool:
    """Return whether a prompt that asks for *paths* already has the input *key*."""
    input_path = ("input", *key.split("."))
    if ("input",) in paths or any(path[: len(input_path)] == input_path for path in paths):
        return True
    # Naming everything that the input's own templates name also counts.
    names = (
        set(templates.iter_template_paths(value, templates.GRAPH_ROOTS))
        if isinstance(value, str)
        else set()
    )
    return bool(names) and names <= set(paths)


def make_node_values(
    graph: Graph,
    name: str,
    marking: Marking,
    text: str,
    read: Read,
    *,
    json_nodes: frozenset[str] = frozenset(),
    head: Head | None = None,
) -> NodeValues | None:
    """Return the values for the execution of node *name* that has started.

    None: *text* asks for none. *head* provides the facts about the run itself.
    """
    node = graph.by_id[name]
    roots = {path[0] for path in templates.iter_template_paths(text, templates.GRAPH_ROOTS)}
    if not roots and node.task is None and not node.input:
        return None
    needs_outputs = bool(roots - {"output"})
    return NodeValues(
        graph,
        node,
        read,
        reached=find_incoming_output(marking, name),
        # Copies: the marking changes while the prompt is composed.
        outputs=dict(marking.outputs) if needs_outputs else {},
        keys=dict(marking.keys) if needs_outputs else {},
        run_values=_run_values(name, marking, head) if needs_outputs else {},
        json_nodes=json_nodes,
    )


def _list_parallel_nodes(name: str, marking: Marking) -> list[str]:
    """Return *name* and the nodes that run at the same time; none if it is alone.

    Nodes that may start count too: each process decides for itself how many of them it starts.
    """
    graph = marking.graph
    ready_names = [node for node in marking.waiting if marking.may_start(node)]
    nodes = {name, *marking.active, *ready_names}
    names = sorted((node for node in nodes if graph.by_id[node].works), key=graph.order.__getitem__)
    return names if len(names) > 1 else []


def _run_values(name: str, marking: Marking, head: Head | None) -> dict[str, Any]:
    """Return the values that the program itself keeps in the state."""
    values: dict[str, Any] = {
        "_workflow_id": "" if head is None else head.workflow_name,
        "_started_at": None if head is None else head.begun_at,
        "_iteration_count": marking.iterations,
        "_current_node": name,
        "_completed_nodes": list(marking.done),
        "_pending_parallel": _list_parallel_nodes(name, marking),
    }
    return values if marking.error is None else {**values, "_error": marking.error}
