"""What a person types next about a run: one answer for the terminal, the pages and programs.

It relies on what the caller has looked up: the head, what is in the way, who holds its steps.
Not promised: that the command succeeds. Another process may be quicker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sequencer.cli.views.text import one_line
from sequencer.engine.flow_source import flow_source_of
from sequencer.engine.run import Run
from sequencer.errors import (
    ConfigurationError,
    DefinitionChanged,
    SequencerError,
    UnknownName,
    command,
    run_option,
    typed,
    typed_command,
)
from sequencer.extensions import PluginUnavailable
from sequencer.history.words import moment
from sequencer.model.head import Claim, Head, Status
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.sequence.order import position_at
from sequencer.model.transitions import RETRY
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.store.protocol import Liveness


class NextCommand(Struct, frozen=True):
    """One command, and what a person should know before typing it."""

    line: str
    """As it is typed."""
    note: str = ""
    """In a few words; empty where the command says it all."""

    @property
    def words(self) -> str:
        """Return both, as the last line of `status` has them."""
        return f"{self.line} ({self.note})" if self.note else self.line


class RunSituation(Struct, frozen=True):
    """What is known about a run when somebody asks what to type next."""

    name: str | None
    """Of the run; None: the default one."""
    head: Head | None
    """None: it has not started."""
    here: Readiness | None = None
    """What is in the way, once the claims of holders that are gone are out of it."""
    holders: Sequence[Liveness] = ()
    """Of the claims, one each."""
    is_trusted: bool = True
    problem: SequencerError | None = None
    """Why the head and the configuration don't fit together."""
    lost: SequencerError | None = None
    """What shows that the run had come further than its files say."""
    stopped_by: Sequence[str] = ()
    """For a team: why its tasks can't start."""
    needs_worker: bool = False
    """Its steps wait for a worker."""
    has_nodes: bool = False
    again: str = ""
    """The command that starts a complete one again; empty: `reset`."""
    until: str = ""
    """The date of the next try in a graph's run where nothing else may start."""
    starts: str = ""
    """When a schedule starts it, in words; empty: no schedule does."""
    merge: str = ""
    """What a person types to merge its work; empty: it is merged, or there is none."""
    takes_over: str = ""
    """The options of `run` that continue the step of a process that is gone."""


def next_command(run: RunSituation) -> NextCommand:
    """Return what a person types next, for every state that a run can be in."""
    return _about_the_files(run) or _about_the_holders(run) or _about_the_run(run)


def run_state(run: RunSituation) -> str:
    """Return what the run is doing, as a key of `states.LOOKS`.

    A run has ended, or is stopped, whatever else is true of it. It is interrupted when the holders
    of all its steps are gone.
    """
    head, here = run.head, run.here
    if head is None:
        return "pending"
    if head.ended_as is not None or head.exit:
        return head.ended_as or "stopped"
    if run.holders and all(one.allows_take_over for one in run.holders):
        return "interrupted"
    if here is not None and here.kind is ReadinessKind.NOT_YET:
        return "retrying" if head.not_before_reason == RETRY else "waiting"
    return (here and _STATES.get(here.kind)) or _BY_STATUS.get(head.status, str(head.status))


_STATES = {
    ReadinessKind.PAUSED: "paused",
    ReadinessKind.LIMIT: "limit",
    ReadinessKind.REFUSED: "failed",
}
"""Of runs that something stands in the way of."""
_BY_STATUS = {
    Status.IDLE: "pending",
    Status.WAITING_NEXT: "ready",
    Status.WAITING_APPROVAL: "asked",
}
"""Of all others; the other statuses are states."""


def _about(run: RunSituation, words: str, note: str = "") -> NextCommand:
    return NextCommand(one_line(f"sequencer {run_option(run.name)}{words}"), one_line(note))


def _about_the_files(run: RunSituation) -> NextCommand | None:
    """Return what has to come first because nothing can continue from these files."""
    if run.lost is not None:
        return _about(run, "repair", "accepted steps may be missing")
    if isinstance(run.problem, DefinitionChanged):
        return _about(run, "adopt", "the run then continues with the steps as they are now")
    if isinstance(run.problem, (PluginUnavailable, UnknownName)):
        return NextCommand("sequencer check", one_line(run.problem.message))
    if run.problem is not None:
        return NextCommand("sequencer check", "the run and orchestration.yaml don't fit together")
    is_over = run.here is not None and run.here.kind is ReadinessKind.COMPLETE
    if not run.is_trusted and not is_over:
        return NextCommand("sequencer trust", "it shows what the project can do, and asks you")
    return None


def _about_the_holders(run: RunSituation) -> NextCommand | None:
    """Return what a person does while its steps are held, or its nodes ask; None: neither."""
    here, free = run.here, [one for one in run.holders if one.allows_take_over]
    if run.head is None or here is None or here.kind not in _MAY_GO_ON:
        return None
    if run.head.asks and not free:
        return _about(run, "inbox")
    return _about_its_processes(run, is_free=bool(free)) if run.holders else None


def _about_its_processes(run: RunSituation, *, is_free: bool) -> NextCommand:
    if run.needs_worker:
        return NextCommand("sequencer worker", "no worker has taken the step yet")
    if is_free:
        return _about(run, f"run {run.takes_over}".rstrip(), "it takes the step over")
    if Liveness.UNKNOWN in run.holders:
        sure = command(run.name, "takeover --force")
        return _about(run, "status --watch", f"{sure} if its process is really gone")
    return _about(run, "status --watch" if run.has_nodes else "log -f")


_MAY_GO_ON = (ReadinessKind.READY, ReadinessKind.HELD, ReadinessKind.NOT_YET, ReadinessKind.PERSON)


def _about_the_run(run: RunSituation) -> NextCommand:
    """Return what continues a run that nobody works on."""
    head, here = run.head, run.here
    if head is None or here is None:
        return _about_the_next_step(run, None)
    found = _about_the_next_step(run, here.until)
    match here.kind:
        case ReadinessKind.STOPPED if head.moved_to is not None:
            place = "first name the place of the run ('store:') in orchestration.yaml"
            found = NextCommand("sequencer trust", place)
        case ReadinessKind.PAUSED | ReadinessKind.STOPPED:
            found = _about(run, "resume")
        case ReadinessKind.PERSON:
            is_question = head.gate is not None or head.status is Status.WAITING_APPROVAL
            found = _about(run, "inbox" if is_question else "resume")
        case ReadinessKind.COMPLETE if run.merge:
            found = NextCommand(one_line(run.merge), "its work is not merged")
        case ReadinessKind.COMPLETE:
            found = _about(run, "report", _by_itself(run) or _again(run))
        case ReadinessKind.REFUSED:
            found = _about(run, "retry", f"{command(run.name, 'log')} says what happened")
        case ReadinessKind.LIMIT:
            found = _raised(here.message)
    return found


def _about_the_next_step(run: RunSituation, until: str | None) -> NextCommand:
    """Return what starts the next step, which may have to wait."""
    if run.stopped_by:
        return _at_budgets(run)
    due = until or run.until
    return _about(run, "run", f"it waits until {moment(due)}" if due else _by_itself(run))


def _by_itself(run: RunSituation) -> str:
    return f"{run.starts} by itself" if run.starts else ""


def _again(run: RunSituation) -> str:
    return f"{run.again or command(run.name, 'reset')} starts it again"


def _raised(message: str) -> NextCommand:
    """Return how to raise the limit that *message* names."""
    named = re.search(r"\b(?:limits|teams)\.[\w.]*\w", message)
    where = f"{named[0]} in orchestration.yaml" if named else "the limit where it is set"
    return NextCommand("sequencer trust", f"first raise {where}")


def _at_budgets(run: RunSituation) -> NextCommand:
    words = "; ".join(run.stopped_by)
    if "teams.max_failures" in words:
        return _about(run, "retry", f"{command(run.name, 'log')} says what happened")
    return _raised(words)


class InterruptedRun(NamedTuple):
    """A run whose steps nobody runs any more, though they were not given back."""

    run: Run
    claims: tuple[Claim, ...]
    next_command: NextCommand

    @property
    def words(self) -> str:
        """Return in one line which steps were interrupted, and who ran them."""
        steps = ", ".join(repr(claim.step) for claim in self.claims)
        makers = self.run.makers() or {}
        who = dict.fromkeys(makers.get(one.token) or one.owner.words for one in self.claims)
        return one_line(f"{steps} was interrupted: {', '.join(who)} is gone")


def interrupted(run: Run, head: Head) -> InterruptedRun | None:
    """Return what a person continues in *run*, which is at *head*; None: nothing was interrupted.

    A run that is stopped, or where another process still runs a step, is left alone.
    """
    gone = [one for one in head.claims if run.store.liveness(one).allows_take_over]
    if not gone or len(gone) < len(head.claims) or head.exit or head.pause_requested:
        return None
    return InterruptedRun(run, tuple(gone), next_command(situation_of(run, head)))


def again(run: Run) -> str:
    """Return what starts the complete *run* again: its flowchart, or `reset`."""
    source = flow_source_of(run.store)
    if source is None or source.file is None:
        return command(run.name, "reset")
    return typed_command("sequencer", "run", source.file, "--new")


def situation_of(run: Run, head: Head) -> RunSituation:
    """Return what *run* and its *head* alone say, for those who need not know more."""
    held = [(claim, run.store.liveness(claim)) for claim in head.claims]
    kept = tuple(claim for claim, known in held if not known.allows_take_over)
    situation = RunSituation(run.name, head, holders=[known for _, known in held])
    try:
        workflow = run.workflow_for(head)
        ensure_definition(head, workflow)
        here = run.readiness_at(head.replace(claims=kept), workflow)
    except (ConfigurationError, DefinitionChanged) as error:
        return replace(situation, problem=error)
    made: dict[str, Any] = {"has_nodes": bool(workflow.nodes), "here": here}
    if head.status is Status.COMPLETE:
        made["again"] = again(run)
    return replace(situation, takes_over=takes_over(run, workflow, held), **made)


def takes_over(
    run: Run, workflow: Workflow | None, holders: Iterable[tuple[Claim, Liveness]]
) -> str:
    """Return the options of `run` that continue the step of a process that is gone.

    Who waits for another position in mode sync leaves this step to a process of its own.
    """
    gone = next((claim for claim, known in holders if known.allows_take_over), None)
    if gone is None or workflow is None or workflow.nodes:
        return ""
    names = {position_at(workflow, index) for index in range(len(workflow.steps))}
    position = position_at(workflow, gone.step_index)
    others = names - {position}
    queues = {frozenset((name,)) for name in others} | ({frozenset(others)} if others else set())
    is_pair = any(run.store.wait_queue(queue).is_awaited() for queue in queues)
    return f"--mode sync --position {typed(position)}" if is_pair else ""
