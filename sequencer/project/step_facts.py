"""Facts about what a step may do, to compare with the facts that a person has trusted.

They come from the steps that the real readers return, with the project's step defaults: grants
to the agent, refusals, gates after the step, and caps. A field that no table in this module
names counts as one that acts: any change of it needs trust.

Not compared: the order of steps and the edges of a graph. A gate that comes later, or that some
path avoids, is still a gate.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.frozen.base import Frozen
from sequencer.model.graph.graph import DEFAULT_MAX_ITERATIONS, Graph, Node, NodeKind
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow

WHOLE = ""
"""Key for facts about a whole workflow. No step has this name."""
PERSON = "asks a person"
"""The gate of a person's node."""
_APPROVAL, _JUDGE = "requires_approval", "validation"

FREE: Mapping[str, frozenset[str]] = {
    "Step": frozenset(
        {
            *("name", "description", "prompt", "text", "agent", "model", "provider"),
            *("temperature", "system_prompt", "append_system_prompt", "system_from_labels"),
            *("suppress_thoughts", "complete_when", "continue_session", "output"),
            *("expects", "stagnation"),
        }
    ),
    "Role": frozenset({"step"}),
    "TaskTraits": frozenset(
        {
            *("role", "description", "active_form", "blocked_by", "needs", "weight", "fixes"),
            "brought",
        }
    ),
    "Graph": frozenset({"nodes", "edges", "entries", "on_error", "state", "has_tasks"}),
    "Node": frozenset(
        {
            *("id", "kind", "label", "description", "question", "options", "input"),
            *("allows_custom_input", "on_timeout", "output_key", "task"),
        }
    ),
    "Workflow": frozenset({"name", "steps", "review", "kind", "graph", "description"}),
}
"""Fields, by class, whose change does not matter for trust, or whose parts are compared."""
COMPARED: Mapping[str, frozenset[str]] = {
    "Step": frozenset(
        {
            *("tools", "allowed_tools", "disallowed_tools", "disallow_all_tools", "agents"),
            *("single_turn", "no_comment", "requires_approval", "approval", "validation"),
            *("max_turns", "timeout_s", "idle_timeout_s", "max_cost_usd", "retry"),
        }
    ),
    "Role": frozenset({"writes", "worktree", "budget"}),
    "TaskTraits": frozenset({"writes", "worktree", "adds", "budget"}),
    "Graph": frozenset({"max_iterations", "timeout_ms", "max_parallel"}),
    "Node": frozenset({"timeout_ms"}),
    "Workflow": frozenset(),
}
"""Fields, by class, that `StepFacts` has as grants, refusals, gates or caps."""
_STEP_CAPS = ("max_cost_usd", "max_turns", "timeout_s", "idle_timeout_s")
_FLAGS = ("disallow_all_tools", "single_turn", "no_comment")
_USUAL: Mapping[str, float] = {
    "retry.max_attempts": 1.0,
    "max_iterations": float(DEFAULT_MAX_ITERATIONS),
}
"""Defaults of caps; a cap that is not listed has no default, so no limit."""
_MS = 1000


class StepFacts(Struct, frozen=True, omit_defaults=True):
    """The facts about one step, or about a whole workflow (`WHOLE`)."""

    agent: str | None = None
    """As named in the step; None: the agent for steps that don't name one. Its fallback agents
    follow, each after a line break, which no name contains."""
    grants: tuple[str, ...] = ()
    """The tools and rights that it gives its agent; one line each, without the step's name."""
    refusals: tuple[str, ...] = ()
    """The tools and rights that it takes from its agent."""
    gates: Mapping[str, float | None] = field(default_factory=dict)
    """Gate -> seconds after which it opens by itself; None: never."""
    caps: Mapping[str, float] = field(default_factory=dict)
    """Only caps that differ from the default."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Fields that no table names, with their values."""

    def get_maximum(self, cap: str) -> float:
        """Return the maximum that *cap* allows, infinity for no cap."""
        return self.caps.get(cap, _USUAL.get(cap, math.inf))

    @property
    def lines(self) -> Iterator[str]:
        """Yield each fact, for people."""
        yield from self.grants
        yield from self.refusals
        yield from (format_gate(name, wait) for name, wait in self.gates.items())
        yield from (f"{name}: {format_cap(cap)}" for name, cap in self.caps.items())
        yield from (f"{name}: {value}" for name, value in self.others.items())

    @property
    def powers(self) -> Iterator[str]:
        """Yield the facts that a person must see first: not refusals and caps, which only limit."""
        yield from self.grants
        yield from (format_gate(name, wait) for name, wait in self.gates.items())
        yield from (f"{name}: {value}" for name, value in self.others.items())


class WiderPermission(Struct, frozen=True):
    """One way in which a step may do more than before."""

    before: str | None
    """The trusted line; None: the line is new."""
    after: str | None
    """The current line; None: it was removed."""


def hide_secret(text: str) -> str:
    """Return what to show instead of the secret *text*; it reveals only whether *text* changed."""
    return f"(hidden, {hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:12]})"


def to_json_line(value: Any) -> str:
    """Return *value* on one line of ASCII."""
    # ASCII only: a look-alike character could deceive the person who decides.
    return json.dumps(value, sort_keys=True, default=str)


def escape_non_ascii(text: str) -> str:
    """Return *text* with every character except printable ASCII escaped."""
    return text.encode("unicode_escape").decode()


def format_cap(most: float) -> str:
    """Return a cap as text for people."""
    return "no cap" if math.isinf(most) else f"{most:.15g}"


def format_gate(name: str, wait_s: float | None) -> str:
    """Return the gate *name* as text; it opens by itself after *wait_s* seconds (None: never)."""
    return f"{name}: true" if wait_s is None else f"{name}: true, continues after {wait_s:g} s"


def facts_of_step(step: Step, traits: Any = None) -> StepFacts:
    """Return the facts of *step*; *traits*: those of its team task or role, if it has one."""
    grants: list[str] = []
    refusals: list[str] = []
    for tool, is_given in (step.tools or {}).items():
        (grants if is_given else refusals).append(f"tools.{tool}: {to_json_line(is_given)}")
    if step.allowed_tools is not None:
        # For some clients the list is also a limit: without it, they allow every tool.
        refusals.append("allowed_tools: no others")
    grants += [f"allowed_tools: {to_json_line(tool)}" for tool in step.allowed_tools or ()]
    refusals += [f"disallowed_tools: {to_json_line(tool)}" for tool in step.disallowed_tools or ()]
    refusals += [f"{name}: true" for name in _FLAGS if getattr(step, name)]
    for name, agent in (step.agents or {}).items():
        grants.append(f"agents.{name}.tools: {to_json_line(agent.tools)}")
    caps = {name: getattr(step, name) for name in _STEP_CAPS}
    caps["retry.max_attempts"] = None if step.retry is None else step.retry.max_attempts
    if step.validation is not None:
        caps[f"{_JUDGE}.max_attempts"] = step.validation.max_attempts
    other_fields = _collect_other_fields(step)
    if traits is not None:
        team_grants = {"writes": traits.writes or None, "adds": getattr(traits, "adds", None)}
        grants += [f"{name}: {to_json_line(value)}" for name, value in team_grants.items() if value]
        refusals += ["worktree: true"] if traits.worktree else []
        caps["budget.max_cost_usd"] = traits.budget.max_cost_usd
        caps["budget.max_tokens"] = traits.budget.max_tokens
        other_fields |= _collect_other_fields(traits)
    return StepFacts(
        step.agent,
        tuple(sorted(set(grants))),
        tuple(sorted(set(refusals))),
        dict(_list_gates(step)),
        _drop_default_caps(caps),
        other_fields,
    )


def _list_gates(step: Step) -> Iterator[tuple[str, float | None]]:
    if step.requires_approval:
        approval = step.approval
        opens = approval is not None and approval.on_timeout == "approve"
        yield _APPROVAL, approval.timeout_s if approval is not None and opens else None
    if step.validation is not None:
        yield _JUDGE, None
        if step.validation.on_exhausted == "fail":
            yield f"{_JUDGE}.on_exhausted fail", None


Complete = Callable[[Step], Step]
"""Returns a step with the project's defaults."""


def facts_of_steps(
    name: str, step: Step, complete: Complete, traits: Any = None
) -> Iterator[tuple[str, StepFacts]]:
    """Yield the facts of *step* as *name*, and the facts of the step that fixes its work.

    The name of an inner step has a line break, which no other step's name contains.
    """
    full_step = complete(step)
    yield name, facts_of_step(full_step, traits)
    if full_step.validation is not None and full_step.validation.fixer is not None:
        yield from facts_of_steps(f"{name}\nfixer", full_step.validation.fixer, complete)


def facts_of_workflow(workflow: Workflow, complete: Complete) -> dict[str, StepFacts]:
    """Return the facts of each step and each human node of *workflow*, by name."""
    step_facts: dict[str, StepFacts] = {}
    nodes = {node.id: node for node in workflow.nodes}
    for step in workflow.steps:
        node = nodes.get(step.name)
        step_facts |= facts_of_steps(step.name, step, complete, None if node is None else node.task)
    if workflow.review is not None:
        step = workflow.review.step
        facts = dict(facts_of_steps(f"{step.name}\nreview", step, complete))
        step_facts |= {
            name: _with_review_cap(inner, workflow.review_every) for name, inner in facts.items()
        }
    other_fields = _collect_other_fields(workflow)
    caps: dict[str, float | None] = {}
    if nodes:
        graph = workflow.whole_graph
        step_facts |= {
            name: _facts_of_person(node) for name, node in nodes.items() if _is_asked(graph, node)
        }
        other_fields |= _collect_other_fields(graph)
        caps = {
            "max_iterations": graph.max_iterations,
            "max_parallel": graph.max_parallel,
            "timeout_s": None if graph.timeout_ms is None else graph.timeout_ms / _MS,
        }
    if caps or other_fields:
        step_facts[WHOLE] = StepFacts(caps=_drop_default_caps(caps), others=other_fields)
    return step_facts


def _with_review_cap(facts: StepFacts, interval: int) -> StepFacts:
    """Return the *facts* of a review; its interval is a cap if the review has a gate."""
    if not facts.gates or not interval:
        return facts
    return replace(facts, caps={**facts.caps, "review.every": float(interval)})


def _is_asked(graph: Graph, node: Node) -> bool:
    # An unreachable node asks no one.
    return node.kind is NodeKind.HUMAN and node.id in graph.reachable


def _facts_of_person(node: Node) -> StepFacts:
    wait_s = None if node.timeout_ms is None else node.timeout_ms / _MS
    return StepFacts(gates={PERSON: wait_s}, others=_collect_other_fields(node))


def _drop_default_caps(caps: Mapping[str, float | None]) -> dict[str, float]:
    numbers = {name: float(cap) for name, cap in caps.items() if cap is not None}
    return {name: cap for name, cap in numbers.items() if cap != _USUAL.get(name)}


def _collect_other_fields(value: Frozen) -> dict[str, str]:
    """Return the fields of *value* that no table names and that differ from their defaults."""
    table = next(cls.__name__ for cls in type(value).__mro__ if cls.__name__ in FREE)
    known_names = FREE[table] | COMPARED[table]
    unknown_fields = {
        name: spec for name, spec in type(value).model_fields.items() if name not in known_names
    }
    fields = {name: getattr(value, name) for name in unknown_fields}
    return {
        name: to_json_line(item.model_dump(mode="json") if isinstance(item, Frozen) else item)
        for name, item in fields.items()
        if item != unknown_fields[name].get_default()
    }


def find_widenings(
    now: StepFacts,
    trusted: StepFacts,
    bounds: Mapping[str, float],
    given: frozenset[str] | None = None,
) -> Iterator[WiderPermission]:
    """Yield each right of *now* that the *trusted* step does not have, except for gates.

    A cap in *bounds* may rise up to the value there. *given* are the grants in other steps of the
    agent; they matter only if the step's agent has changed.
    """
    if PERSON not in now.gates:
        is_same = given is None or _agents(now) <= _agents(trusted)
        trusted_grants = set(trusted.grants) if is_same else set(trusted.grants) & (given or set())
        recipient = (
            "" if is_same else f", to agent {to_json_line(' or '.join(sorted(_agents(now))))}"
        )
        yield from (
            WiderPermission(None, f"{grant}{recipient}")
            for grant in now.grants
            if grant not in trusted_grants
        )
        yield from (
            WiderPermission(line, None) for line in trusted.refusals if line not in now.refusals
        )
        for name in sorted({*now.caps, *trusted.caps}):
            old_cap, new_cap = trusted.get_maximum(name), now.get_maximum(name)
            if new_cap > old_cap and new_cap > bounds.get(name, -math.inf):
                yield WiderPermission(
                    f"{name}: {format_cap(old_cap)}", f"{name}: {format_cap(new_cap)}"
                )
    for name in sorted({*now.others, *trusted.others}):
        old_value, new_value = trusted.others.get(name), now.others.get(name)
        if old_value != new_value:
            yield WiderPermission(
                old_value and f"{name}: {old_value}", new_value and f"{name}: {new_value}"
            )


def _agents(facts: StepFacts) -> set[str]:
    return set((facts.agent or "").split("\n"))


def lost_gates(now: StepFacts, trusted: StepFacts) -> Iterator[WiderPermission]:
    """Yield each gate of *trusted* that *now* does not have, or that opens by itself sooner."""
    for name, wait_s in trusted.gates.items():
        gate = format_gate(name, wait_s)
        if name not in now.gates:
            yield WiderPermission(gate, None)
        elif _effective_wait(now.gates[name]) < _effective_wait(wait_s):
            yield WiderPermission(gate, format_gate(name, now.gates[name]))


def find_removed_gates(
    gone: Mapping[str, StepFacts], came: Mapping[str, StepFacts]
) -> Iterator[tuple[str, WiderPermission]]:
    """Yield (step, gate) for each gate of the steps *gone* that no step of *came* replaces.

    So a renamed step keeps its gate, and a removed step loses it.
    """
    waits: dict[str, list[float]] = {}
    for facts in came.values():
        for name, wait_s in facts.gates.items():
            waits.setdefault(name, []).append(_effective_wait(wait_s))
    # Match the longest waits first: the shorter ones can use the gates that remain.
    gates = [
        (gate, _effective_wait(wait), step)
        for step, facts in gone.items()
        for gate, wait in facts.gates.items()
    ]
    for gate, wait_s, step in sorted(gates, key=lambda item: -item[1]):
        longest_wait = max(waits.get(gate, ()), default=-1.0)
        if longest_wait < wait_s:
            yield (
                step,
                WiderPermission(format_gate(gate, None if math.isinf(wait_s) else wait_s), None),
            )
        else:
            waits[gate].remove(longest_wait)


def _effective_wait(wait_s: float | None) -> float:
    return math.inf if wait_s is None else wait_s
