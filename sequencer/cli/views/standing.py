"""What `status` knows about a run at one moment, for people and for programs.

Read without the lock. Not promised: that it is still true when you read it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from sequencer.cli.views.facts import look_closely
from sequencer.cli.views.states import shown
from sequencer.cli.views.text import age_s, one_line, plain, plural
from sequencer.engine.by_hand import fresh_head
from sequencer.engine.run import Run
from sequencer.engine.tree_state import UnmergedWork
from sequencer.engine.view import LINE_CHARS, FlowView
from sequencer.errors import ConfigurationError, CorruptState, DefinitionChanged
from sequencer.logs import FileLogs, log_name, sent_texts
from sequencer.model.evidence import evidence_of, evidence_words
from sequencer.model.head import Claim, Head
from sequencer.model.kind import Readiness, Standing, standing
from sequencer.model.limits import RunLimits
from sequencer.model.line.order import Description, describe_at, place, present
from sequencer.model.outcome import duration, spent
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.plugins.posting.results import Pending
from sequencer.plugins.schedules.schedules import as_utc, clock
from sequencer.plugins.teams.nodes import Heard, node_table, nodes_json
from sequencer.store import folder as folders
from sequencer.store.folder import read_regular
from sequencer.store.journal import NAME as JOURNAL
from sequencer.store.journal import decode, facts_of
from sequencer.store.protocol import Liveness

LABEL_WIDTH = 10
SHOWN_DENIALS = 3
SHOWN_NAMES = 3
MAX_RECORD_BYTES = 4 * 1024 * 1024


class Snapshot(Struct, frozen=True):
    """The run at one moment."""

    name: str | None
    head: Head | None
    """None: the run has not started."""
    workflow: Workflow | None
    """None: it is no longer configured."""
    next: Description | None
    """None: the run is complete, or started with another definition."""
    standing: Standing | None
    holders: tuple[tuple[Claim, Liveness], ...]
    limits: RunLimits
    denials: tuple[str, ...]
    """Refused tool calls of the agent of the newest step."""
    shown: tuple[str, ...]
    """What the newest attempts have shown, a line each."""
    note: str
    """What is odd about how the newest step was performed, or how it ended."""
    overspent: tuple[str, ...]
    """Which of them have spent more than they may."""
    notices: tuple[str, ...]
    graph_view: FlowView | None = None
    """The states of a graph's nodes."""
    stopped_by: tuple[str, ...] = ()
    """For a team: why its tasks can't start."""
    heard: Mapping[str, Heard] = field(default_factory=dict)
    """The last output of a graph's running nodes."""
    posts: tuple[Pending, ...] = ()
    """What the activity sinks have not taken yet."""
    elsewhere: str = ""
    """Where attempts run; empty: here too."""
    makers: Mapping[int, str] | None = None
    """Who runs the attempts, by token, if the claims don't say it; empty: nobody yet."""
    detached: Sequence[Mapping[str, Any]] = ()
    """Detached permissions to work, which no process waits for."""
    unmerged: tuple[UnmergedWork, ...] = ()
    """What it has done in worktrees that nobody has merged."""
    starts: float | None = None
    """When it starts by itself, in seconds since 1970; None: by no schedule, or it is under way."""

    @property
    def busy(self) -> bool:
        """Return whether a process that may be alive runs a step."""
        return any(not liveness.allows_take_over for _, liveness in self.holders)

    @property
    def end(self) -> str | None:
        """Return why nothing starts until someone changes the run; None: it continues."""
        here = self.standing
        if here is None or self.busy or not (here.is_final or here.kind is Readiness.REFUSED):
            return None
        return here.message

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the head, plus ``next`` and ``busy``."""
        facts: dict[str, Any] = {}
        if self.head is not None:
            facts = self.head.model_dump(mode="json")
        elif self.workflow is not None:
            facts = fresh_head(self.workflow).model_dump(mode="json")
            facts |= {"run_id": None, "last_update": None}
        posts = [one.as_json() for one in self.posts]
        seen = {**facts, "next": self.next, "busy": self.busy, "posts": posts}
        if self.makers:
            seen["makers"] = {str(token): who or None for token, who in self.makers.items()}
        if self.detached:
            seen["detached"] = list(self.detached)
        if self.starts is not None:
            seen["starts_at"] = as_utc(self.starts)
        if self.unmerged:
            seen["unmerged"] = [one.as_json() for one in self.unmerged]
        if self.graph_view is None:
            return seen

        return {**seen, "nodes": nodes_json(self.graph_view, self.heard)["nodes"]}

    def text(self, width: int | None = None) -> str:
        """Return the view for people, in several lines; a table may be as narrow as *width*."""
        text = "\n".join(self.lines())
        if self.graph_view is None:
            return text

        return f"{text}\n\n{node_table(self.graph_view, datetime.now(UTC), width, self.heard)}"

    def lines(self) -> list[str]:
        """Return the view for people without the nodes of a graph."""
        rows = [(label, one_line(value)) for label, value in self._rows() if value]
        return [f"{label:<{LABEL_WIDTH}}  {value}" for label, value in rows]

    def line(self) -> str:
        """Return the view for people in one line."""
        head = self.head
        if head is None:
            return "idle · the run has not started"
        parts = [head.last_update, f"revision {head.revision}", str(head.status)]
        parts.append(f"step_index {head.step_index}")
        if self.graph_view is not None:
            parts += self._flow_words(head)
        elif self.next is not None:
            parts.append(f"{'runs' if self.busy else 'next'} {self.next['step']}")
        return one_line(" · ".join(parts))

    def _flow_words(self, head: Head) -> Iterator[str]:
        """Yield what runs, what waits for an answer, and what may start."""
        if head.claims and self.busy:
            yield f"runs {_first([claim.step for claim in head.claims])}"
        if asked := self._nodes_that_are("asked"):
            yield f"asks {_first(asked)}"
        if ready := self._ready():
            yield f"next {_first(ready)}"

    def _ready(self) -> list[str]:
        """Return the nodes of the graph's run that may start, the most urgent first."""
        if self.graph_view is None:
            return []
        return sorted(self._nodes_that_are("ready"), key=self.graph_view.graph.urgency.__getitem__)

    def _nodes_that_are(self, state: str) -> list[str]:
        nodes = self.graph_view.nodes if self.graph_view is not None else ()
        return [one.node.id for one in nodes if one.state == state]

    def _rows(self) -> Iterator[tuple[str, str]]:
        head = self.head
        yield "run", f"{self.name or 'default'}, workflow {self._workflow_words()}"
        since = "idle: not started; 'sequencer run' starts it"
        word = "" if head is None else head.ended_as or head.status
        yield "status", since if head is None else f"{word} since {head.last_update}"
        yield "starts", "" if self.starts is None else clock(self.starts)
        yield "next step", self.next_words()
        yield "purpose", self._next_description()
        yield from self._unmerged_rows()
        if head is None:
            return
        for held, liveness in _by_owner(self.holders, self.makers or {}):
            yield "held by", holder_words(held, liveness, self.makers, self.elsewhere)
        yield from (("permitted", _permitted(one)) for one in self.detached)
        if self.standing is not None and self.standing.kind not in (
            Readiness.READY,
            Readiness.HELD,
        ):
            is_over = self.standing.kind is Readiness.COMPLETE
            yield "ended" if is_over else "in the way", self.standing.message
        for reason in self.stopped_by:
            yield "in the way", f"{reason}: no task starts"
        if head.told:
            waiting = dict.fromkeys(to or "the next step" for to, _ in head.told)
            yield "messages", f"waiting for {_first([*waiting])}"
        if head.failures_in_row:
            yield (
                "failures",
                f"{head.failures_in_row} in a row, limit {self.limits.failures_in_row}",
            )
        used = filter(None, (spent(head.usage), f"{duration(head.usage.seconds)} of work"))
        yield "used", ", ".join((plural(head.usage.steps, "step"), *used))
        yield "limits", ", ".join(self.limit_words(head))
        yield from (("shown", line) for line in self.shown)
        for one in self.posts:
            yield "posts", one.text(lambda at: duration(age_s(at) or 0.0))
        yield "note", self.note
        yield from (("warning", line) for line in self.overspent)
        for denial in self.denials[:SHOWN_DENIALS]:
            yield "warning", f"refused by the agent's permissions: {denial}"
        if len(self.denials) > SHOWN_DENIALS:
            yield "warning", f"and {len(self.denials) - SHOWN_DENIALS} more refused tool calls"

    def _unmerged_rows(self) -> Iterator[tuple[str, str]]:
        for one in self.unmerged:
            yield "not merged", f"{one.words}; {one.hint}"

    def _workflow_words(self) -> str:
        name, params = "unknown", dict[str, Any]()
        if self.head is not None:
            name, params = self.head.workflow_name, self.head.params
        elif self.workflow is not None:
            name, params = self.workflow.name, self.workflow.params
        return ", ".join((name, *(f"{key} {value}" for key, value in params.items())))

    def next_words(self) -> str:
        """Return the next step, with its place and prompt; empty if there is none."""
        step = self.next
        if self.graph_view is not None and self.head is not None:
            return self._few_subjects()
        if step is None:
            return ""
        if self.graph_view is not None:
            return str(step["step"])
        words = f"{step['step']} (step_index {step['step_index']}, iteration {step['iteration']}"
        words += f", cycle {step['cycle_index']}"
        if step["review"]:
            words += f", a review at position {step['position']}"
        return f"{words}, prompt {step['prompt']})"

    def _next_description(self) -> str:
        """Return the description of the next step."""
        workflow, here = self.workflow, self.next
        if workflow is None or here is None or workflow.nodes:
            return ""
        known = {one.name: one.description for one in workflow.every_step}
        return known.get(here["step"], "")

    def _few_subjects(self) -> str:
        """Return what may start; for a single task, also its label."""
        ready = self._ready()
        if self.graph_view is None or not ready:
            return ""
        label = self.graph_view.graph.by_id[ready[0]].label
        return f"{ready[0]}: {label}" if ready[1:] == [] and label else _first(ready)

    def limit_words(self, head: Head) -> Iterator[str]:
        """Yield how much of each of the run's limits is used."""
        limits, usage = self.limits, head.usage
        if limits.steps is not None:
            yield f"{usage.steps} of {limits.steps} steps"
        if limits.cost_usd is not None:
            # The sum lacks the unknown costs, which may be any amount.
            known = f"{usage.cost_usd:.2f}" if usage.known_usd is not None else "unknown"
            yield f"{known} of {limits.cost_usd:.2f} USD"
        if limits.seconds is not None:
            yield f"{duration(usage.seconds)} of {duration(limits.seconds)}"


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _by_owner(
    holders: Iterable[tuple[Claim, Liveness]], makers: Mapping[int, str]
) -> Iterator[tuple[Sequence[Claim], Liveness]]:
    """Yield the claims grouped by the process that holds them."""
    found: dict[tuple[object, ...], tuple[list[Claim], Liveness]] = {}
    for claim, liveness in holders:
        one = claim.owner
        process = (one.host, one.boot_id, one.pid_ns, one.pid, one.pid_start)
        who = (liveness, *process, makers.get(claim.token))
        found.setdefault(who, ([], liveness))[0].append(claim)
    yield from found.values()


def _permitted(permit: Mapping[str, Any]) -> str:
    """Return what a detached permission allows, or how it ended."""
    if "end" in permit:
        return f"detached from {permit['since']} to {permit['until']}: {permit['end']}"
    most = ", ".join(f"{name} {value}" for name, value in permit["limits"].items() if value)
    return f"detached since {permit['since']}{most and f' ({most})'}: workers run the steps"


def holder_words(
    claims: Sequence[Claim],
    liveness: Liveness,
    makers: Mapping[int, str] | None = None,
    elsewhere: str = "",
) -> str:
    """Return who holds *claims*, all of one process, for how long, and what is known.

    *makers* name the holders by token if the claims don't; *elsewhere* is where they must run.
    """
    maker = claims[0].owner.words if makers is None else makers.get(claims[0].token, "")
    held_s = age_s(claims[0].claimed_at)
    age = "" if held_s is None else f", for {duration(held_s)}"
    known = {
        Liveness.ALIVE: "alive",
        Liveness.UNKNOWN: "may still be alive",
        Liveness.EXPIRED: "its lease ran out; the next run or tick takes over",
        Liveness.DEAD: "gone; the next run or tick takes over",
    }
    state = known[liveness]
    if not maker and liveness is Liveness.ALIVE:
        on, there = (f" on {elsewhere}", " there") if elsewhere else ("", "")
        state = f"no worker{on} has taken it yet; 'sequencer worker'{there} starts one"
    text = f"{maker or 'a worker'}, "
    if len(claims) > 1:
        held = f"{len(claims)} steps: {_first([claim.step for claim in claims])}"
        return f"{text}{held}: {state}"
    claim = claims[0]
    text += f"step {claim.step}, token {claim.token}"
    return f"{text}, attempt {claim.attempt}{age}: {state}"


def take(run: Run, logs: FileLogs | None = None, known: list[Any] | None = None) -> Snapshot:
    """Look at *run*, and at what the nodes of a graph wrote into *logs*.

    Facts that are already *known* are not read again.

    Raises:
        CorruptState: its state can't be read.
    """
    view = run.view()
    head, notices = view.head, view.notices
    workflow, upcoming, here, is_as_begun = None, None, None, True
    try:
        workflow = run.workflow_for(head)
        there = place(workflow, 0)
        if head is not None:
            there = present(workflow, head)
            ensure_definition(head, workflow)
            here = standing(head, workflow, run.limits, datetime.now(UTC))
        is_over = here is not None and here.kind is Readiness.COMPLETE
        if not is_over and not there.is_end:
            upcoming = describe_at(workflow, there)
    except (ConfigurationError, DefinitionChanged) as error:
        # The head is a fact, even if the configuration does not fit it.
        if head is None:
            raise
        notices, is_as_begun = (*notices, one_line(str(error))), False
    claims = head.claims if head is not None else ()
    seen, stopped_by = None, tuple[str, ...]()
    if workflow is not None and workflow.nodes and is_as_begun:
        seen = look_closely(run, workflow.name, known)[0]
        if head is not None and not (here is not None and here.kind is Readiness.COMPLETE):
            stopped_by = tuple(run.stopped_by(head))
    return Snapshot(
        name=run.name,
        head=head,
        workflow=workflow,
        next=upcoming,
        standing=here,
        holders=tuple((claim, run.store.liveness(claim)) for claim in claims),
        limits=run.limits,
        **_newest_words(run, head),
        notices=notices,
        graph_view=seen,
        stopped_by=stopped_by,
        makers=run.makers() if claims else None,
        elsewhere=run.elsewhere() if claims else "",
        detached=run.detached() if head is not None else (),
        heard=heard_of(claims, logs.folders) if seen and logs and claims else {},
    )


def _of(fact: Mapping[str, Any]) -> Mapping[str, Any]:
    return fact.get("outcome") or {}


def _newest_words(run: Run, head: Head | None) -> dict[str, Any]:
    """Return what people are told of the newest attempts, by field of `Snapshot`."""
    newest = _newest(run, head)
    outcomes = list(map(_of, newest))
    notes = (str(one["note"]) for one in outcomes if one.get("agent") and one.get("note"))
    found = zip(newest, outcomes, strict=True)
    steps = [(fact["step"], one, evidence_words(evidence_of(one))) for fact, one in found]
    return {
        "denials": tuple(str(line) for one in outcomes for line in one.get("denials") or ()),
        "note": next(notes, ""),
        "shown": tuple(f"{step}: {words}" for step, _, words in steps if words),
        "overspent": tuple(
            f"{step} has spent {one['overspent']}" for step, one, _ in steps if one.get("overspent")
        ),
    }


def _newest(run: Run, head: Head | None) -> Sequence[Mapping[str, Any]]:
    """Return the facts of the newest record; reading all would take too long."""
    if head is None:
        return ()
    journal = run.store.state_path.with_name(JOURNAL)
    try:
        data = read_regular(journal, head.journal_offset, max_bytes=MAX_RECORD_BYTES)
        return facts_of(decode(data.partition(b"\n")[0]))
    except (OSError, ValueError, CorruptState):
        return ()


TAIL_BYTES = 8 * 1024
FIRST_BYTES = 4 * 1024
TITLE_LINES = 3
"""Number of lines at the start of a log that say what it is."""
ENDED = "\n# ended "
SENT = b"# sent: "
MAX_LOOKS = 20
"""A rewound step writes to a log with a higher number than its attempt."""


def heard_of(claims: Iterable[Claim], folders: Sequence[Path]) -> dict[str, Heard]:
    """Return the newest line of each step in *claims* that has a log in one of *folders*."""
    found = {
        claim.step: next(filter(None, (_newest_line(claim, one) for one in folders)), "")
        for claim in claims
    }
    return {step: Heard(line) for step, line in found.items() if line}


def _newest_line(claim: Claim, folder: Path) -> str:
    first_number = max(claim.attempt, 1)
    for number in range(first_number, first_number + MAX_LOOKS):
        name = log_name(claim.step_index, claim.step, number)
        try:
            text = _written(folder / name, claim.token)
        except OSError:
            return ""
        if text is not None:
            # A log with its last lines is over, even if the run has not heard of it yet.
            said = text.rpartition(ENDED)[0] if ENDED in text else text
            lines = (shown(line) for line in reversed(plain(said).split("\n")))
            return next((line for line in lines if line), "")[:LINE_CHARS]
    return ""


def _written(path: Path, token: int) -> str | None:
    """Return the end of what the claim of *token* wrote to *path*; None: another claim wrote it."""
    # Never follow a link, and never wait for a pipe.
    fd = folders.open_file(path, os.O_RDONLY)
    try:
        begin = os.pread(fd, FIRST_BYTES, 0)
        titles = begin.split(b"\n", TITLE_LINES)
        if not titles[0].endswith(b" token %d" % token):
            return None
        if len(titles) <= TITLE_LINES:
            return ""
        # Behind the prompt, which stands there first: the agent's own words begin there.
        sent = sent_texts(fd)
        if sent is None and titles[-1].startswith(SENT):
            return ""
        told = len(begin) - len(titles[-1]) if sent is None else sent.end
        start = max(told, os.fstat(fd).st_size - TAIL_BYTES)
        return os.pread(fd, TAIL_BYTES, start).decode("utf-8", "replace")
    finally:
        os.close(fd)
