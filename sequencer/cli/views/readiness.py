"""What `status` shows about a run at one moment, for people and for programs.

It is read without the run's lock. Not promised: that it is still true when you read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.cli.views.facts import (
    find_readable_workflow,
    find_since,
    read_newest_facts,
    read_view_and_facts,
)
from sequencer.cli.views.next_command import (
    NextCommand,
    RunSituation,
    drop_gone_claims,
    list_holders,
    next_command,
    restart_command,
    run_state,
    take_over_options,
)
from sequencer.cli.views.nodes import NodeProgress, node_table, nodes_json
from sequencer.cli.views.states import StateDisplay, get_state_display
from sequencer.cli.views.tails import last_failure, read_last_outputs
from sequencer.cli.views.text import age_s, one_line, pluralize
from sequencer.engine.kinds import make_readable_kind
from sequencer.engine.logs import StepLogs
from sequencer.engine.run import Run
from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import (
    ConfigurationError,
    DefinitionChanged,
    SequencerError,
    StepsMissing,
    format_command,
)
from sequencer.history.view import FlowView, NodeState, NodeView
from sequencer.history.words import format_time
from sequencer.model.evidence import format_evidence, read_evidence
from sequencer.model.head import Claim, Head, Status
from sequencer.model.kind import (
    Readiness,
    ReadinessKind,
    describe_retry,
    fresh_head,
    make_end_readiness,
)
from sequencer.model.limits import RunLimits
from sequencer.model.outcome import format_duration, format_usage
from sequencer.model.sequence.order import Description, describe_at, describe_last_no
from sequencer.model.workflow import PARAM_KEYS, Workflow, ensure_definition
from sequencer.project.posting import Pending
from sequencer.project.project import Project
from sequencer.project.scheduler import (
    describe_start,
    format_local_time,
    format_utc,
    skipped_date_to_data,
)
from sequencer.store.protocol import Liveness

LABEL_WIDTH = 10
SHOWN_DENIALS = 3
SHOWN_NAMES = 3


class Snapshot(Struct, frozen=True):
    """The run at one moment."""

    name: str | None
    head: Head | None
    """None: the run has not started."""
    workflow: Workflow | None
    """None: the workflow is no longer configured."""
    next: Description | None
    """None: the run is complete, or started with another definition."""
    readiness: Readiness | None
    """What may happen next, not counting the claims of processes that are gone."""
    holders: tuple[tuple[Claim, Liveness], ...]
    limits: RunLimits
    since: str | None
    """When the run reached its current position, ISO 8601 UTC."""
    denials: tuple[str, ...]
    """Tool calls that were refused to the agent of the newest step."""
    evidence: tuple[str, ...]
    """Evidence of progress of the newest attempts, one line each."""
    note: str
    """Something unusual about how the newest step ran or ended."""
    overspent: tuple[str, ...]
    """The newest attempts that spent more than their limit, one line each."""
    notices: tuple[str, ...]
    graph_view: FlowView | None = None
    """The states of a graph's nodes."""
    stopped_by: tuple[str, ...] = ()
    """For a team: why none of its tasks starts."""
    last_outputs: Mapping[str, NodeProgress] = field(default_factory=dict)
    """The last output of a graph's running nodes."""
    posts: tuple[Pending, ...] = ()
    """Posts that the activity sinks have not taken yet."""
    worker_location: str = ""
    """The machine that all attempts have to run on; empty: they can run on this one too."""
    workers: Mapping[int, str] | None = None
    """Token -> the worker that runs the attempt; empty text: none yet. None: the claims say it."""
    detached: Sequence[Mapping[str, Any]] = ()
    """Detached permissions to work; no process waits for them."""
    unmerged: tuple[UnmergedWork, ...] = ()
    """Work of the run in worktrees that is not merged."""
    next_start: float | None = None
    """When a schedule starts it, in seconds since 1970; None: none does, or it has started."""
    failure: str = ""
    """The first line of the last failure, if that failure still matters."""
    problem: SequencerError | None = None
    """Why the head and the configuration don't fit together."""
    lost: SequencerError | None = None
    """Evidence that the run had gone further than its files say."""
    is_trusted: bool = True
    takes_over: str = ""
    """The options of `run` that continue the step of a process that is gone."""
    restart_command: str = ""
    """The command that starts a complete run again."""

    package_lines: tuple[tuple[str, str], ...] = ()
    """(label, text) lines that packages add."""
    skipped_start: tuple[float, str] | None = None
    """The newest scheduled date that started nothing, in seconds since 1970, and the reason."""

    @property
    def busy(self) -> bool:
        """Return whether a process that may be alive runs a step."""
        return any(not liveness.allows_take_over for _, liveness in self.holders)

    @property
    def is_ready(self) -> bool:
        """Return whether the next step starts as soon as a process works on the run."""
        is_held_up = self.lost or self.problem or self.stopped_by or not self.is_trusted
        is_free = self.readiness is not None and self.readiness.kind is ReadinessKind.READY
        return is_free and not is_held_up

    @property
    def end(self) -> str | None:
        """Return why nothing starts until someone changes the run; None: the run continues."""
        readiness = self.readiness
        if readiness is None or self.busy:
            return None
        is_over = readiness.is_final or readiness.kind is ReadinessKind.REFUSED
        return readiness.message if is_over else None

    @property
    def next_command(self) -> NextCommand:
        """Return the command that a person should type next."""
        return next_command(self._situation)

    @property
    def state(self) -> StateDisplay:
        """Return the state of the run, as the screen shows it."""
        return get_state_display(run_state(self._situation))

    @property
    def _situation(self) -> RunSituation:
        has_worker = self.workers is None or any(self.workers.values())
        return RunSituation(
            name=self.name,
            head=self.head,
            readiness=self.readiness,
            holders=[liveness for _, liveness in self.holders],
            is_trusted=self.is_trusted,
            problem=self.problem,
            lost=self.lost,
            stopped_by=self.stopped_by,
            needs_worker=self.busy and not has_worker,
            has_nodes=self.graph_view is not None,
            until="" if self.next_try is None else self.next_try.due or "",
            next_start="" if self.next_start is None else describe_start(self.next_start),
            takes_over=self.takes_over,
            restart_command=self.restart_command,
            merge=self.unmerged[0].commands[0] if self.unmerged else "",
        )

    @property
    def next_try(self) -> NodeView | None:
        """Return the graph's node that is tried again first; None: none, or another may start."""
        nodes = () if self.graph_view is None else self.graph_view.nodes
        retries = [node for node in nodes if node.state is NodeState.RETRYING and node.due]
        if not retries or any(node.state in (NodeState.READY, NodeState.RUNNING) for node in nodes):
            return None
        return min(retries, key=lambda node: node.due or "")

    @property
    def in_the_way(self) -> list[str]:
        """Return the reasons why nothing starts now, one line each."""
        lines = [] if self.lost is None else [self.lost.in_one_line]
        readiness = self.readiness
        if readiness is not None and readiness.kind not in (*_FREE, ReadinessKind.COMPLETE):
            due_time = format_time(readiness.until) if readiness.until else ""
            lines.append(readiness.message.replace(readiness.until or due_time, due_time))
        if self.head is not None and self.head.pause_requested and self.head.claims:
            command = format_command(self.name, "resume")
            lines.append(f"the run pauses when its running step ends; {command} cancels the pause")
        if (node := self.next_try) is not None:
            lines.append(describe_retry(node.node.id, format_time(node.due or ""), self.name))
        return [*lines, *(f"{reason}: no task starts" for reason in self.stopped_by)]

    def as_json(self) -> dict[str, Any]:
        """Return the head's fields, and in addition what comes next and what is in the way."""
        facts: dict[str, Any] = {}
        if self.head is not None:
            facts = self.head.model_dump(mode="json")
        elif self.workflow is not None:
            head = fresh_head(self.workflow, "not-started", at="", name=None, has_definition=False)
            facts = head.model_dump(mode="json")
            facts |= {"run_id": None, "last_update": None}
        posts = [post.as_json() for post in self.posts]
        facts |= {"next": self.next, "busy": self.busy, "posts": posts}
        command, obstacles = self.next_command, self.in_the_way
        obstacles += [] if self.problem is None else [self.problem.in_one_line]
        facts |= {"next_command": command.line, "next_note": command.note or None}
        facts |= {"failure": self.failure or None, "in_the_way": obstacles}
        facts |= {"held_by": [*self._holders_json()], "notices": list(self.notices)}
        if self.workers:
            facts["makers"] = {str(token): worker or None for token, worker in self.workers.items()}
        if self.detached:
            facts["detached"] = list(self.detached)
        if self.next_start is not None:
            facts["starts_at"] = format_utc(self.next_start)
        if self.skipped_start is not None:
            facts["left_out"] = skipped_date_to_data(self.skipped_start)
        if self.package_lines:
            facts["more"] = [{"label": label, "text": text} for label, text in self.package_lines]
        if self.unmerged:
            facts["unmerged"] = [work.as_json() for work in self.unmerged]
        if self.graph_view is None:
            return facts
        return {**facts, "nodes": nodes_json(self.graph_view, self.last_outputs)["nodes"]}

    def format_text(self, width: int | None = None) -> str:
        """Return the view for people, in several lines; its table fits into *width* columns."""
        text, command = "\n".join(self.format_lines()), f"next: {self.next_command.words}"
        if self.graph_view is None:
            return f"{text}\n{command}"
        table = node_table(self.graph_view, datetime.now(UTC), width, self.last_outputs)
        return f"{text}\n\n{table}\n\n{command}"

    def format_lines(self) -> list[str]:
        """Return the lines for people, without the table of a graph's nodes."""
        rows = [(label, one_line(value)) for label, value in self._format_rows() if value]
        return [f"{label:<{LABEL_WIDTH}}  {value}" for label, value in rows]

    def format_line(self) -> str:
        """Return the view for people in one line."""
        head = self.head
        if head is None:
            return "idle · the run has not started"
        parts = [head.last_update, f"revision {head.revision}", str(head.status)]
        parts.append(f"step_index {head.step_index}")
        if self.graph_view is not None:
            parts += self._format_flow(head)
        elif self.next is not None:
            parts.append(f"{'runs' if self.busy else 'next'} {self.next.step}")
        return one_line(" · ".join(parts))

    def _format_flow(self, head: Head) -> Iterator[str]:
        """Yield which nodes run, which wait for an answer, and which may start."""
        if head.claims and self.busy:
            yield f"runs {_join_first([claim.step for claim in head.claims])}"
        if questions := self._list_nodes_in(NodeState.ASKED):
            yield f"asks {_join_first(questions)}"
        if ready_names := self._list_ready_nodes():
            yield f"next {_join_first(ready_names)}"

    def _list_ready_nodes(self) -> list[str]:
        """Return the names of the graph's nodes that may start, the most urgent first."""
        if self.graph_view is None:
            return []
        urgency = self.graph_view.graph.urgency
        return sorted(self._list_nodes_in(NodeState.READY), key=urgency.__getitem__)

    def _list_nodes_in(self, state: NodeState) -> list[str]:
        nodes = self.graph_view.nodes if self.graph_view is not None else ()
        return [node.node.id for node in nodes if node.state is state]

    def _format_rows(self) -> Iterator[tuple[str, str]]:
        head = self.head
        yield "run", f"{self.name or 'default'}, workflow {self._format_workflow()}"
        yield "status", self._format_state()
        yield from self._format_dates()
        yield "next step", self.format_next_step()
        yield "purpose", self._next_description()
        yield from self._unmerged_rows()
        yield from ((one_line(label)[:LABEL_WIDTH], text) for label, text in self.package_lines)
        if head is None:
            return
        for claims, liveness in _group_by_owner(self.holders, self.workers or {}):
            yield "held by", describe_holder(claims, liveness, self.workers, self.worker_location)
        yield from (("permitted", _describe_order(order)) for order in self.detached)
        if self.readiness is not None and self.readiness.kind is ReadinessKind.COMPLETE:
            yield "ended", self.readiness.message
        yield from (("in the way", line) for line in self.in_the_way)
        if head.waiting_messages:
            step_names = dict.fromkeys(step or "the next step" for step, _ in head.waiting_messages)
            yield "messages", f"waiting for {_join_first([*step_names])}"
        yield from self._failure_rows(head)
        work = f"{format_duration(head.usage.seconds)} of work"
        usage_parts = filter(None, (format_usage(head.usage), work))
        yield "used", ", ".join((pluralize(head.usage.steps, "step"), *usage_parts))
        yield "limits", ", ".join(self.format_limits(head))
        yield from (("shown", line) for line in self.evidence)
        for post in self.posts:
            yield "posts", post.format_text(lambda at: format_duration(age_s(at) or 0.0))
        yield "note", self.note
        yield from (("warning", line) for line in self.overspent)
        for denial in self.denials[:SHOWN_DENIALS]:
            yield "warning", f"refused by the agent's permissions: {denial}"
        if len(self.denials) > SHOWN_DENIALS:
            yield "warning", f"and {len(self.denials) - SHOWN_DENIALS} more refused tool calls"

    def _failure_rows(self, head: Head) -> Iterator[tuple[str, str]]:
        """Yield the failures of the current step, and the reason why its judge said no."""
        exhausted_count = 0 if head.loop is None else head.loop.exhausted
        # The failure after a judge's last round resets failures_in_row; `exhausted` still counts.
        count = max(head.failures_in_row, exhausted_count)
        row = f"{count} in a row, limit {self.limits.failures_in_row}" if count else ""
        yield "failures", ": ".join(filter(None, (row, self.failure)))
        if self.workflow is not None and self.next is not None:
            yield "verdict", describe_last_no(self.workflow, head)

    def _format_state(self) -> str:
        if self.head is None:
            return f"{self.state.word}; 'sequencer run' starts it"
        is_pending = self.state == get_state_display("pending")
        return self.state.word if is_pending else f"{self.state.word} since {self.since}"

    def _holders_json(self) -> Iterator[dict[str, Any]]:
        """Yield one JSON object for each claim: its step and token, its holder, its liveness.

        ``by`` is None if no worker has taken the claim yet.
        """
        for claim, liveness in self.holders:
            holder = claim.owner.words if self.workers is None else self.workers.get(claim.token)
            yield {"step": claim.step, "token": claim.token, "by": holder, "state": str(liveness)}

    def _format_dates(self) -> Iterator[tuple[str, str]]:
        """Yield (label, text) for the next start by a schedule and for the skipped one, if any."""
        if self.next_start is not None:
            yield "starts", format_local_time(self.next_start)
        if self.skipped_start is not None:
            date, reason = self.skipped_start
            yield "left out", f"{format_local_time(date)}: {reason}"

    def _unmerged_rows(self) -> Iterator[tuple[str, str]]:
        for work in self.unmerged:
            yield "not merged", f"{work.words}; {work.hint}"

    def _format_workflow(self) -> str:
        name, params = "unknown", dict[str, Any]()
        if self.head is not None:
            name, params = self.head.workflow_name, self.head.params
        elif self.workflow is not None:
            name, params = self.workflow.name, self.workflow.params
        assignments = (f"{PARAM_KEYS.get(key, key)} {value}" for key, value in params.items())
        return ", ".join((name, *assignments))

    def format_next_step(self) -> str:
        """Return the next step with its index and prompt; empty: there is none."""
        step = self.next
        if self.graph_view is not None and self.head is not None:
            return self._format_ready_nodes()
        if step is None:
            return ""
        if self.graph_view is not None:
            return step.step
        words = f"{step.step} (step_index {step.step_index}, iteration {step.iteration}"
        words += f", cycle {step.cycle_index}"
        if step.review:
            words += f", a review at position {step.position}"
        return f"{words}, prompt {step.prompt})"

    def _next_description(self) -> str:
        """Return the description of the next step; empty: it has none, or the run is a graph's."""
        workflow, description = self.workflow, self.next
        if workflow is None or description is None or workflow.nodes:
            return ""
        descriptions = {step.name: step.description for step in workflow.every_step}
        return descriptions.get(description.step, "")

    def _format_ready_nodes(self) -> str:
        """Return the nodes that may start; for a single task, also its label."""
        names = self._list_ready_nodes()
        if self.graph_view is None or not names:
            return ""
        return _join_first(self.graph_view.graph.format_nodes(names))

    def format_limits(self, head: Head) -> Iterator[str]:
        """Yield how much of each of the run's limits is used."""
        limits, usage = self.limits, head.usage
        if limits.steps is not None:
            yield f"{usage.steps} of {limits.steps} steps"
        if limits.cost_usd is not None:
            # Unknown costs, which may be any amount, are missing in the sum.
            cost = f"{usage.cost_usd:.2f}" if usage.known_usd is not None else "unknown"
            yield f"{cost} of {limits.cost_usd:.2f} USD"
        if limits.seconds is not None:
            yield f"{format_duration(usage.seconds)} of {format_duration(limits.seconds)}"


_FREE = (ReadinessKind.READY, ReadinessKind.HELD)


def _join_first(names: Sequence[str]) -> str:
    suffix = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + suffix


def _group_by_owner(
    holders: Iterable[tuple[Claim, Liveness]], workers: Mapping[int, str]
) -> Iterator[tuple[Sequence[Claim], Liveness]]:
    """Yield the claims grouped by the process that holds them."""
    groups: dict[tuple[object, ...], tuple[list[Claim], Liveness]] = {}
    for claim, liveness in holders:
        owner = claim.owner
        process = (owner.host, owner.boot_id, owner.pid_ns, owner.pid, owner.pid_start)
        key = (liveness, *process, workers.get(claim.token))
        groups.setdefault(key, ([], liveness))[0].append(claim)
    yield from groups.values()


def _describe_order(order: Mapping[str, Any]) -> str:
    """Return in words what a detached work order allows, or how it ended."""
    if "end" in order:
        return f"detached from {order['since']} to {order['until']}: {order['end']}"
    limits = ", ".join(f"{name} {value}" for name, value in order["limits"].items() if value)
    return f"detached since {order['since']}{limits and f' ({limits})'}: workers run the steps"


def describe_holder(
    claims: Sequence[Claim],
    liveness: Liveness,
    workers: Mapping[int, str] | None = None,
    worker_location: str = "",
) -> str:
    """Return in words the process that holds all *claims*, how long, and whether it is alive.

    *workers* names the holders by token if the claims don't; *worker_location* is where they have
    to run.
    """
    worker = claims[0].owner.words if workers is None else workers.get(claims[0].token, "")
    held_s = age_s(claims[0].claimed_at)
    age = "" if held_s is None else f", for {format_duration(held_s)}"
    states = {
        Liveness.ALIVE: "alive",
        Liveness.UNKNOWN: "may still be alive",
        Liveness.EXPIRED: "its lease ran out; the next run or tick takes over",
        Liveness.DEAD: "gone; the next run or tick takes over",
    }
    state = states[liveness]
    if not worker and liveness is Liveness.ALIVE:
        location, place = (f" on {worker_location}", " there") if worker_location else ("", "")
        state = f"no worker{location} has taken it yet; 'sequencer worker'{place} starts one"
    text = f"{worker or 'a worker'}, "
    if len(claims) > 1:
        steps = f"{len(claims)} steps: {_join_first([claim.step for claim in claims])}"
        return f"{text}{steps}: {state}"
    claim = claims[0]
    text += f"step {claim.step}, token {claim.token}"
    return f"{text}, attempt {claim.attempt}{age}: {state}"


def add_project_facts(
    project: Project, run: Run, snapshot: Snapshot, lost: StepsMissing | None
) -> Snapshot:
    """Return *snapshot* of *run*, with what only the *project* knows: trust, obstacles, losses.

    *lost* is the result of `Project.find_lost_steps`.
    """
    head, is_bare = snapshot.head, project.rehearses and project.settings.store_kind.is_local
    obstacle = None if head is None else project.obstacle(run, head, snapshot.workflow)
    if len(project_notices := project.settings.notices) == 1:
        # The command has already shown a single notice when it opened the project.
        notices = tuple(text for text in snapshot.notices if text not in project_notices)
        snapshot = replace(snapshot, notices=notices)
    if obstacle is not None and snapshot.problem is None:
        notices = snapshot.notices
        if obstacle.in_one_line not in project_notices:
            notices = (*notices, obstacle.in_one_line)
        snapshot = replace(snapshot, problem=obstacle, notices=notices)
    return replace(
        snapshot,
        is_trusted=is_bare or project.trust.is_current,
        lost=lost,
    )


def take_snapshot(
    run: Run, logs: StepLogs | None = None, known: list[Any] | None = None
) -> Snapshot:
    """Return *run* as it is now, with the last output in *logs*; *known* facts are not read again.

    Raises:
        CorruptState: its state can't be read.
    """
    view = run.view()
    head, notices = view.head, view.notices
    workflow, next_facts, readiness, problem, is_over = None, None, None, None, False
    claims, holders = (head.claims, tuple(list_holders(run, head))) if head else ((), ())
    try:
        workflow = run.workflow_for(head)
        if head is None:
            next_facts = _find_first_step(run, workflow)
        else:
            ensure_definition(head, workflow)
            readiness = run.readiness_at(drop_gone_claims(head, holders), workflow)
            place, is_over = readiness.place, readiness.kind is ReadinessKind.COMPLETE
            next_facts = None if is_over or place.is_end else describe_at(workflow, place)
    except (ConfigurationError, DefinitionChanged) as error:
        # The head is a fact, even if the configuration does not fit it.
        if head is None:
            raise
        if not (is_over := head.status is Status.COMPLETE):
            notices, problem = (*notices, error.in_one_line), error
        readiness = make_end_readiness(head) if is_over else None
        workflow = find_readable_workflow(run, head, workflow)
    has_nodes = workflow is not None and bool(workflow.nodes)
    graph = read_view_and_facts(run, workflow.name, known)[0] if workflow and has_nodes else None
    is_moving = has_nodes and readiness is not None and not is_over
    return Snapshot(
        name=run.name,
        head=head,
        workflow=workflow,
        next=next_facts,
        readiness=readiness,
        holders=holders,
        limits=run.limits,
        **_newest_attempt_fields(run, head),
        notices=notices,
        graph_view=graph and _mark_interrupted(graph, holders),
        stopped_by=tuple(run.describe_blockers(head)) if head is not None and is_moving else (),
        **_process_fields(run, head),
        last_outputs=read_last_outputs(claims, logs.folders) if graph and logs and claims else {},
        failure=last_failure(run, head, graph),
        problem=problem,
        takes_over=take_over_options(run, workflow, holders) if problem is None else "",
    )


def _find_first_step(run: Run, workflow: Workflow) -> Description | None:
    return next(iter(make_readable_kind(run.store, workflow).list_upcoming(None, 1)), None)


def _mark_interrupted(view: FlowView, holders: Iterable[tuple[Claim, Liveness]]) -> FlowView:
    """Return *view* with the nodes marked as interrupted whose holders are gone."""
    names = {claim.step for claim, liveness in holders if liveness.allows_take_over}
    nodes = tuple(replace(node, is_interrupted=node.node.id in names) for node in view.nodes)
    return replace(view, nodes=nodes)


def _process_fields(run: Run, head: Head | None) -> dict[str, Any]:
    """Return fields of `Snapshot`: the workers of *run*, and what restarts it after its end."""
    if head is None:
        return {}
    is_over = head.status is Status.COMPLETE
    fields: dict[str, Any] = {"detached": run.list_detached_orders()}
    if is_over:
        fields["restart_command"] = restart_command(run)
    if head.claims:
        fields["workers"] = run.list_attempt_processes()
        fields["worker_location"] = run.find_worker_location()
    return fields


def _newest_attempt_fields(run: Run, head: Head | None) -> dict[str, Any]:
    """Return what people should know about the newest attempts, by field of `Snapshot`."""
    facts = read_newest_facts(run, head)
    outcomes = [fact.details for fact in facts]
    notes = (str(o["note"]) for o in outcomes if o.get("agent") and o.get("note"))
    return {
        "since": None if head is None else find_since(head, facts),
        "denials": tuple(str(line) for o in outcomes for line in o.get("denials") or ()),
        "note": next(notes, ""),
        "evidence": tuple(
            f"{fact.step}: {words}"
            for fact in facts
            if (words := format_evidence(read_evidence(fact.details)))
        ),
        "overspent": tuple(
            f"{fact.step} has spent {fact.details['overspent']}"
            for fact in facts
            if fact.details.get("overspent")
        ),
    }
