"""Simulates a graph on a virtual clock, without agents and without waiting.

A script says what each node answers and how long it takes, and may set other limits. The rules
are the same as in real runs, and so are the names of tasks that are added to a team. Without a
script, an agent or a person takes 10 ms, a task 10 ms for each unit of its weight, a marker no
time; a choice takes the first branch forward, a judge says yes, a lead adds nothing. A recorded
flow is a valid script: its chart, name and expected result are ignored.

Not promised: a team's budgets, circuit breaker and merges; they depend on what agents use and
write.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from msgspec import Struct

from sequencer.errors import ConfigurationError, UnknownName, raise_all
from sequencer.files.keys import find_problems
from sequencer.files.yamlfile import format_key_path
from sequencer.frozen.fields import AfterValidator, BeforeValidator, Field, ValidationError
from sequencer.history.trace import trace_line
from sequencer.model.graph.choices import forward_label, is_choice
from sequencer.model.graph.ends import Acceptance, Failure, Rejection, TaskExpander, judge_end
from sequencer.model.graph.graph import Graph, Node, NodeKind, TaskExpansion
from sequencer.model.graph.marking import (
    FlowStatus,
    Marking,
    Reference,
    find_incoming_output,
    read_text,
)
from sequencer.model.graph.rules import RETRYABLE, MarkingEditor
from sequencer.model.graph.source import copy_nested, set_nested
from sequencer.model.kind import AttemptResult
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Retry, Step, Validation
from sequencer.model.transitions import Event, StepRef
from sequencer.model.workflow import Workflow, expand_workflow
from sequencer.workflows.flowfile.settings import (
    MAX_TIMEOUT_MS,
    FlowKeys,
    Milliseconds,
    Overrides,
    RetrySettings,
)
from sequencer.workflows.verdicts import read_verdict, with_second_attempt

DEFAULT_MS = 10
MAX_EVENTS = 250_000
"""Limit of one simulation: with two events per node, the widest chart can run six times."""


class EndlessReplay(ConfigurationError):
    """A simulation has too many events to read; loops may repeat a million times."""


class NodeScript(Struct, frozen=True):
    """The part of a script about one node."""

    out: tuple[Any, ...] = ()
    """One answer for each attempt, the last one for all later attempts; ``{"error": text}``
    fails."""
    ms: tuple[int, ...] = ()
    """How long each attempt takes, in the same way."""


class Replay(Struct, frozen=True):
    """The result of a simulation."""

    status: str
    trace: tuple[str, ...]
    state: Mapping[str, Any]
    back: tuple[str, ...]
    """The back edges, as ``from->to[label]``."""
    iterations: int = 0
    facts: tuple[tuple[int, Event, str, Mapping[str, Any]], ...] = ()
    graph: Graph | None = None
    """The graph at the end, with added tasks."""


def format_back_edges(graph: Graph) -> tuple[str, ...]:
    """Return the edges that close a loop as ``from->to[label]``, sorted."""
    texts = []
    for index in graph.back_edges:
        edge = graph.edges[index]
        label = f"[{edge.label}]" if edge.label else ""
        texts.append(f"{edge.source}->{edge.target}{label}")
    return tuple(sorted(texts))


START = datetime(2000, 1, 1, tzinfo=UTC)
"""The time at which the virtual clock is 0."""


def _parse_due_ms(due_text: str | None) -> int | None:
    """Return *due_text*, ISO 8601 UTC, in milliseconds of the virtual clock."""
    date = parse_time(due_text) if due_text is not None else None
    return None if date is None else round((date - START) / timedelta(milliseconds=1))


def _timeout_outcome() -> Outcome:
    return Outcome(status=OutcomeStatus.FAILED, error="timeout", is_timed_out=True)


class _Simulation:
    """The state of one simulation."""

    def __init__(
        self, workflow: Workflow, parts: Mapping[str, NodeScript], expander: TaskExpander | None
    ) -> None:
        self._workflow, self._parts, self._expander = workflow, parts, expander
        self._editor = MarkingEditor(Marking(workflow.whole_graph))
        self._events: list[tuple[int, int, int, str]] = []
        """Future ends and retries: time, order of the node, execution, node."""
        self._execution: dict[str, int] = {}
        self._number = 0
        self._attempts: dict[str, int] = {}
        self._resting: set[str] = set()
        """Agents that wait for their next try."""
        self._due_retries: list[tuple[int, str]] = []
        """Agents whose next try is due and that wait for a free slot, as a heap by order."""
        self._outputs: dict[str, str] = {}
        self._now = self._busy = 0
        self._facts: list[tuple[int, Event, str, Mapping[str, Any]]] = []

    def run(self) -> Replay:
        """Simulate until no token is left, and return the result.

        Raises:
            EndlessReplay: there are more than `MAX_EVENTS` events.
        """
        self._editor.begin()
        self._start_all()
        while self._marking.status is FlowStatus.RUNNING and self._events:
            if not self._advance():
                continue
            _, _, execution, name = heapq.heappop(self._events)
            if self._execution.get(name) != execution or name not in self._marking.active:
                continue
            if name in self._resting:
                self._queue_retry(name)
            else:
                self._finish(name)
            self._start_retries()
            self._start_all()
        self._collect_facts()
        trace = [
            (time_ms, trace_line(event, node, data)) for time_ms, event, node, data in self._facts
        ]
        return Replay(
            status=str(self._marking.status),
            trace=tuple(f"{fact_ms} {text}" for fact_ms, text in trace if text is not None),
            state=self._build_final_state(),
            back=format_back_edges(self._graph),
            iterations=self._marking.iterations,
            facts=tuple(self._facts),
            graph=self._graph,
        )

    @property
    def _marking(self) -> Marking:
        return self._editor.marking

    @property
    def _graph(self) -> Graph:
        """Return the graph, with the tasks that were added to it."""
        return self._editor.graph

    def _collect_facts(self) -> None:
        for fact in self._editor.facts:
            self._facts.append((self._now, fact.event, fact.node, fact.details))
        self._editor.facts.clear()
        if len(self._facts) > MAX_EVENTS:
            loops = self._marking.iterations
            raise EndlessReplay(
                f"the simulation has not ended after {MAX_EVENTS:,} events"
                f" ({loops:,} of at most {self._graph.max_iterations:,} loops)",
                where=self._workflow.name,
                hint="lower maxIterations",
            )

    def _advance(self) -> bool:
        """Advance the clock to the next event; return False if the run's time limit comes first."""
        self._collect_facts()
        due_ms = self._events[0][0]
        limit = self._graph.timeout_ms
        if limit is not None and any(self._iter_running_agents()):
            if self._busy + (due_ms - self._now) > limit:
                self._now += limit - self._busy
                self._editor.time_out()
                return False
            self._busy += due_ms - self._now
        self._now = due_ms
        return True

    # --- starting ------------------------------------------------------------------

    def _start_all(self) -> None:
        while self._marking.status is FlowStatus.RUNNING:
            name = self._marking.find_next_startable(agents=self._has_room())
            if name is None:
                return
            self._editor.start(name)
            if name in self._resting:
                # An error elsewhere ended the execution that waited for its next try.
                self._resting.discard(name)
                self._due_retries = sorted(retry for retry in self._due_retries if retry[1] != name)
            self._start_attempt(name)

    def _has_room(self) -> bool:
        limit = self._graph.max_parallel
        return (
            limit is None
            or sum(name not in self._resting for name in self._iter_running_agents()) < limit
        )

    def _iter_running_agents(self) -> Iterator[str]:
        """Yield the agents that have started and have no final failure."""
        for name, execution in self._marking.active.items():
            if execution.error is None and self._is_agent(name):
                yield name

    def _queue_retry(self, name: str) -> None:
        heapq.heappush(self._due_retries, (self._graph.order[name], name))

    def _is_agent(self, name: str) -> bool:
        return self._graph.by_id[name].kind is NodeKind.AGENT

    def _start_attempt(self, name: str) -> None:
        number = self._attempts.get(name, 0)
        self._attempts[name] = number + 1
        self._schedule(self._now + self._duration(name, number), name)

    def _schedule(self, due_ms: int, name: str) -> None:
        self._number += 1
        self._execution[name] = self._number
        heapq.heappush(self._events, (due_ms, self._graph.order[name], self._number, name))

    def _limit_ms(self, name: str) -> int | None:
        node = self._graph.by_id[name]
        if node.kind is NodeKind.HUMAN:
            return node.timeout_ms
        step = self._workflow.steps_by_name.get(name)
        return round(step.timeout_s * 1000) if step is not None and step.timeout_s else None

    def _attempt_ms(self, name: str, number: int) -> int:
        lengths = self._parts[name].ms if name in self._parts else ()
        if lengths:
            return lengths[min(number, len(lengths) - 1)]
        node = self._graph.by_id[name]
        if node.task is not None:
            return max(1, round(DEFAULT_MS * node.task.weight))
        return DEFAULT_MS if node.works else 0

    def _duration(self, name: str, number: int) -> int:
        limit = self._limit_ms(name)
        length = self._attempt_ms(name, number)
        return length if limit is None else min(length, limit)

    # --- ending --------------------------------------------------------------------

    def _finish(self, name: str) -> None:
        number = self._attempts[name] - 1
        limit = self._limit_ms(name)
        node = self._graph.by_id[name]
        is_late = limit is not None and self._attempt_ms(name, number) > limit
        if is_late and node.kind is NodeKind.HUMAN:
            self._editor.expire(name)
            return
        outcome = _timeout_outcome() if is_late else self._build_outcome(node, number)
        if self._is_agent(name):
            self._end_attempt(name, outcome, f"{name}-{number}")
        elif outcome.is_accepted:
            is_new = node.works
            reference = f"{name}-{number}" if is_new else find_incoming_output(self._marking, name)
            self._accept(name, outcome.output, reference)
        else:
            self._fail(name, Failure(outcome))

    def _build_outcome(self, node: Node, number: int) -> Outcome:
        """Return the outcome of attempt *number* at *node*, and store its answer."""
        answer = self._choose_answer(node, number)
        if isinstance(answer, Mapping) and set(answer) == {"error"}:
            return Outcome(status=OutcomeStatus.FAILED, error=str(answer["error"]))
        text = answer if isinstance(answer, str) else json.dumps(answer, separators=(",", ":"))
        if node.works:
            self._outputs[f"{node.id}-{number}"] = text
        return Outcome(status=OutcomeStatus.OK, output=text)

    def _end_attempt(self, name: str, outcome: Outcome, reference: Reference) -> None:
        """End an attempt at the agent *name* with *outcome*, the same way as a run does."""
        # A lead adds nothing if the script has no answer for it.
        is_silent = outcome.is_accepted and not outcome.output
        end = judge_end(
            self._judge_attempt(name, outcome),
            name,
            self._marking,
            START + timedelta(milliseconds=self._now),
            workflow=self._workflow,
            expander=None if is_silent else self._expander,
        )
        if isinstance(end, Acceptance):
            self._accept(name, end.outcome.output, reference, end.growth)
        elif isinstance(end, Rejection):
            self._reject(name, end)
        else:
            self._fail(name, end)

    def _judge_attempt(self, name: str, outcome: Outcome) -> AttemptResult:
        """Return the attempt at *name* with its verdict, if a task of a team judges."""
        step = self._workflow.steps_by_name.get(name) or Step(name=name)
        ref, verdict = StepRef(0, name, step.prompt_name), None
        if self._find_validation(name) is not None and outcome.is_accepted:
            verdict = read_verdict(outcome, is_command=False)
            if verdict.source == "none":
                failed_outcome = outcome.replace(status=OutcomeStatus.FAILED, error=verdict.reason)
                return AttemptResult(failed_outcome, with_second_attempt(step), ref, agent="")
            if not verdict.is_pass:
                error = f"the answer is no: {verdict.reason}"
                outcome = outcome.replace(status=OutcomeStatus.FAILED, error=error)
        return AttemptResult(outcome, step, ref, agent="", verdict=verdict)

    def _find_validation(self, name: str) -> Validation | None:
        step = self._workflow.steps_by_name.get(name)
        return step.validation if step is not None and self._expander is not None else None

    def _accept(
        self, name: str, text: str, reference: Reference | None, growth: TaskExpansion | None = None
    ) -> None:
        if growth is not None:
            # Before its tokens move: a node that waits for this task also waits for added tasks.
            self._editor.do("grow", growth.as_json())
            self._workflow = expand_workflow(self._workflow, [growth])
        self._editor.succeed(name, text, reference)
        if growth is not None:
            self._editor.report_expansion(growth, name)

    def _reject(self, name: str, end: Rejection) -> None:
        self._editor.refuse(name, end.outcome.error or "", end.fix)
        if end.fix is not None:
            self._workflow = expand_workflow(self._workflow, [end.fix])
            return
        # The judge runs again immediately, like an agent whose retry is due.
        self._resting.add(name)
        self._queue_retry(name)

    def _fail(self, name: str, end: Failure) -> None:
        due_ms, message = _parse_due_ms(end.due), end.outcome.error or ""
        if end.kind in RETRYABLE or due_ms is not None:
            self._editor.fail_attempt(
                name, message, None if due_ms is None else str(due_ms), end.kind
            )
        else:
            self._editor.fail(name, end.kind, message)
        if due_ms is None:
            # Other tasks of a team continue; the run ends if no other task is left.
            self._editor.end_if_done()
            return
        self._resting.add(name)
        if due_ms > self._now:
            self._schedule(due_ms, name)
        else:
            # As in a run: a retry that is due goes before a new start.
            self._queue_retry(name)

    def _choose_answer(self, node: Node, number: int) -> Any:
        part = self._parts.get(node.id)
        if part is not None and part.out:
            return part.out[min(number, len(part.out) - 1)]
        if not node.works:
            return read_text(
                find_incoming_output(self._marking, node.id), self._outputs.__getitem__
            )
        if self._find_validation(node.id) is not None:
            return json.dumps({"pass": True})
        return self._forward_label(node.id)

    def _forward_label(self, name: str) -> str:
        is_asked = is_choice(self._graph, name)
        return (forward_label(self._graph, name) or "") if is_asked else ""

    def _start_retries(self) -> None:
        while self._due_retries and self._has_room():
            _, name = heapq.heappop(self._due_retries)
            if name not in self._marking.active:
                continue
            self._resting.discard(name)
            failures = self._marking.active[name].failures
            details = {"retry": failures + 1} if failures else {"again": True}
            self._editor.report(Event.CLAIMED, name, **details)
            self._start_attempt(name)

    def _build_final_state(self) -> dict[str, Any]:
        """Return the final state without the program's internal keys."""
        state: dict[str, Any] = copy_nested(self._graph.state)
        for key, name in self._marking.keys.items():
            set_nested(
                state, key, read_text(self._marking.outputs.get(name), self._outputs.__getitem__)
            )
        return {key: value for key, value in state.items() if not key.startswith("_")}


def simulate(
    workflow: Workflow,
    parts: Mapping[str, NodeScript] | None = None,
    expander: TaskExpander | None = None,
) -> Replay:
    """Simulate *workflow*, a graph, whose nodes answer as *parts* say.

    *expander* makes the tasks that are added to a team.
    """
    return _Simulation(workflow, parts or {}, expander).run()


def apply_overrides(
    workflow: Workflow, overrides: Overrides, where: str, size: int | None
) -> Workflow:
    """Return a team's *workflow* with the overrides of a script.

    *size* tasks run at the same time if the list does not say how many.

    Raises:
        ConfigurationError: the script has keys that only a flowchart can have; *where* names it.
    """
    chart_keys = {
        "entry": overrides.entry,
        "onError": overrides.on_error,
        "maxIterations": overrides.max_iterations,
    }
    text = "is for the file of a flowchart, not for a team or a run"
    wrong_keys = [key for key, value in chart_keys.items() if value is not None]
    raise_all([ConfigurationError(text, where=f"{where}: {key}") for key in wrong_keys])
    graph = workflow.whole_graph
    limits = {"timeout_ms": overrides.timeout, "max_parallel": graph.max_parallel or size}
    graph = graph.replace(**({key: value for key, value in limits.items() if value}))
    steps = tuple(_override_step(step, overrides) for step in workflow.steps)
    return Workflow(workflow.name, steps, kind="graph", graph=graph)


def _override_step(step: Step, overrides: Overrides) -> Step:
    fields: dict[str, Any] = {}
    if step.name in overrides.timeouts:
        fields["timeout_s"] = overrides.timeouts[step.name] / 1000
    settings = overrides.retry
    if settings is not None and step.retry is None:
        seconds = (("initialDelay", "initial_delay_s"), ("maxDelay", "max_delay_s"))
        retry = {field: settings[key] / 1000 for key, field in seconds if key in settings}
        if "maxAttempts" in settings:
            retry["max_attempts"] = settings["maxAttempts"]
        if "backoff" in settings:
            retry["backoff"] = settings["backoff"]
        fields["retry"] = Retry.model_validate(retry)
    return step.replace(**fields) if fields else step


ABOUT = ("name", "mermaid", "why", "expect")
"""Keys of a recorded flow that are not part of its script."""


def _to_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _validate_answer(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"error"} and not isinstance(value["error"], str):
        raise ValueError("expected the error's text")
    return value


_Length = Annotated[int, Field(strict=True, ge=0, le=MAX_TIMEOUT_MS)]


class _NodeSettings(FlowKeys):
    out: Annotated[
        tuple[Annotated[Any, AfterValidator(_validate_answer)], ...],
        BeforeValidator(_to_list),
        Field(min_length=1),
    ] = ()
    """One answer for each attempt, the last one for all later attempts; or a single answer."""
    ms: Annotated[tuple[_Length, ...], BeforeValidator(_to_list), Field(min_length=1)] = ()
    timeout: Milliseconds | None = None

    @property
    def part(self) -> NodeScript:
        return NodeScript(self.out, self.ms)


class _Script(FlowKeys):
    nodes: dict[str, _NodeSettings] = Field(default_factory=dict)
    entry: str | None = Field(default=None, min_length=1)
    on_error: str | None = Field(default=None, alias="onError", min_length=1)
    retry: RetrySettings | None = None
    max_iterations: int | None = Field(
        default=None, alias="maxIterations", strict=True, ge=0, le=1_000_000
    )
    timeout: Milliseconds | None = None


class Script(Struct, frozen=True):
    """A parsed script: overrides for the reader of the workflow, node scripts for a simulation."""

    overrides: Overrides
    parts: Mapping[str, NodeScript]
    where: str = ""

    def check(self, graph: Graph) -> None:
        """Check that *graph* has all nodes that the script names.

        Raises:
            ConfigurationError: a node is not in the chart, or has a time limit but no work.
        """
        errors: list[ConfigurationError] = []
        nodes = graph.by_id
        for name in {**self.parts, **self.overrides.timeouts}:
            location = f"{self.where}: {format_key_path(('nodes', name))}"
            if name not in nodes:
                errors.append(UnknownName("node", name, nodes, where=location))
            elif name in self.overrides.timeouts and not nodes[name].works:
                text = f"a {nodes[name].kind} does no work, so it can't take too long"
                errors.append(ConfigurationError(text, where=f"{location}.timeout"))
        raise_all(errors)


def read_script(data: object, where: str) -> Script:
    """Return the script in *data*, the content of the file *where*.

    Raises:
        ConfigurationError: it has unknown keys or invalid values; all problems are reported.
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError('a script is a mapping, {"nodes": {…}, …}', where=where)
    try:
        script = _Script.model_validate({key: data[key] for key in data if key not in ABOUT})
    except ValidationError as error:
        problems = find_problems(error, _Script, lambda _: where)
        raise_all([problem.error for problem in problems])
        raise
    retry = None
    if script.retry is not None:
        retry = script.retry.model_dump(by_alias=True, exclude_none=True)
    parts = {name: node.part for name, node in script.nodes.items()}
    overrides = Overrides(
        entry=script.entry,
        on_error=script.on_error,
        retry=retry,
        max_iterations=script.max_iterations,
        timeout=script.timeout,
        timeouts={
            id_: node.timeout for id_, node in script.nodes.items() if node.timeout is not None
        },
        agents=frozenset(name for name, part in parts.items() if part.out or part.ms),
    )
    return Script(overrides, parts, where)
