"""Which command a person should type next: one answer for the terminal, the pages and programs.

It relies on what the caller has read: the head, what is in the way, and the holders of the steps.
Not promised: that the command succeeds. Another process may be quicker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.cli.views.text import one_line
from sequencer.engine.awaited_step import format_position_options, list_unserved_positions
from sequencer.engine.flow_source import find_flow_source
from sequencer.engine.run import Run
from sequencer.errors import (
    ConfigurationError,
    DefinitionChanged,
    PackageFailed,
    SequencerError,
    UnknownName,
    format_command,
    format_other_command,
    run_option,
)
from sequencer.extensions import PluginUnavailable
from sequencer.history.words import format_time
from sequencer.model.head import Claim, Head, Status
from sequencer.model.kind import Readiness, ReadinessKind
from sequencer.model.sequence.order import position_at
from sequencer.model.transitions import RETRY
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.store.protocol import Liveness


class NextCommand(Struct, frozen=True):
    """One command, and what a person should know before typing it."""

    line: str
    """The command as a person types it."""
    note: str = ""
    """A few words about it; empty if the command explains itself."""

    @property
    def words(self) -> str:
        """Return the command and its note, as in the last line of `status`."""
        return f"{self.line} ({self.note})" if self.note else self.line


class RunSituation(Struct, frozen=True):
    """Everything about a run that decides which command comes next."""

    name: str | None
    """The name of the run; None: the default run."""
    head: Head | None
    """None: the run has not started."""
    readiness: Readiness | None = None
    """What may happen next, not counting the claims of processes that are gone."""
    holders: Sequence[Liveness] = ()
    """The liveness of each claim's holder."""
    is_trusted: bool = True
    problem: SequencerError | None = None
    """Why the head and the configuration don't fit together."""
    lost: SequencerError | None = None
    """Evidence that the run had gone further than its files say."""
    stopped_by: Sequence[str] = ()
    """For a team: why its tasks can't start."""
    needs_worker: bool = False
    """Whether its steps wait for a worker."""
    has_nodes: bool = False
    restart_command: str = ""
    """The command that starts a complete run again; empty: `reset`."""
    until: str = ""
    """For a graph's run: the date of the next retry, if no other node may start before."""
    next_start: str = ""
    """When a schedule starts it, in words; empty: no schedule does."""
    merge: str = ""
    """The command that merges its work; empty: the work is merged, or there is none."""
    takes_over: str = ""
    """The options of `run` that continue the step of a process that is gone."""


def next_command(run: RunSituation) -> NextCommand:
    """Return the command that a person should type next, for every state of a run."""
    return _command_for_files(run) or _command_for_holders(run) or _command_for_run(run)


def run_state(run: RunSituation) -> str:
    """Return the state of the run, as a key of `states.LOOKS`.

    That a run has ended, is stopped or is paused takes precedence over everything else. A run is
    interrupted when the holders of all its steps are gone.
    """
    head, readiness = run.head, run.readiness
    if head is None:
        return "pending"
    if head.ended_as is not None or head.exit:
        return head.ended_as or "stopped"
    if readiness is not None and readiness.kind is ReadinessKind.PAUSED:
        return "paused"
    if run.holders and all(holder.allows_take_over for holder in run.holders):
        return "interrupted"
    if readiness is not None and readiness.kind is ReadinessKind.NOT_YET:
        return "retrying" if head.not_before_reason == RETRY else "waiting"
    return (readiness and _STATES.get(readiness.kind)) or _BY_STATUS.get(
        head.status, str(head.status)
    )


_STATES = {
    ReadinessKind.LIMIT: "limit",
    ReadinessKind.REFUSED: "failed",
}
"""The states of runs that something blocks."""
_BY_STATUS = {
    Status.IDLE: "pending",
    Status.WAITING_NEXT: "ready",
    Status.WAITING_APPROVAL: "asked",
}
"""The states of all other runs. A status that is missing here is itself a state."""


def _make_command(run: RunSituation, words: str, note: str = "") -> NextCommand:
    return NextCommand(one_line(f"sequencer {run_option(run.name)}{words}"), one_line(note))


def _make_project_command(words: str, note: str) -> NextCommand:
    """Return the command for all runs of the project."""
    return NextCommand(f"sequencer {run_option(None)}{words}", note)


def _command_for_files(run: RunSituation) -> NextCommand | None:
    """Return the command without which the run can't continue from these files; None: none."""
    if run.lost is not None:
        return _make_command(run, "repair", "accepted steps may be missing")
    if isinstance(run.problem, DefinitionChanged):
        return _make_command(run, "adopt", "the run then continues with the steps as they are now")
    if isinstance(run.problem, (PackageFailed, PluginUnavailable, UnknownName)):
        return _make_command(run, "check", run.problem.message)
    if run.problem is not None:
        return _make_command(run, "check", "the run and orchestration.yaml don't fit together")
    is_over = run.readiness is not None and run.readiness.kind is ReadinessKind.COMPLETE
    if not run.is_trusted and not is_over:
        return _make_project_command("trust", "it shows what the project can do, and asks you")
    return None


def _command_for_holders(run: RunSituation) -> NextCommand | None:
    """Return the command for a run whose steps are held or whose nodes ask; None: neither."""
    readiness = run.readiness
    dead_holders = [holder for holder in run.holders if holder.allows_take_over]
    if run.head is None or readiness is None or readiness.kind not in _MAY_CONTINUE:
        return None
    if run.head.asks and not dead_holders:
        return _make_command(run, "inbox")
    return _command_for_processes(run, has_dead=bool(dead_holders)) if run.holders else None


def _command_for_processes(run: RunSituation, *, has_dead: bool) -> NextCommand:
    if run.needs_worker:
        return _make_project_command("worker", "no worker has taken the step yet")
    if has_dead:
        return _make_command(run, f"run {run.takes_over}".rstrip(), "it takes the step over")
    if Liveness.UNKNOWN in run.holders:
        force = format_command(run.name, "takeover --force")
        return _make_command(run, "status --watch", f"{force} if its process is really gone")
    return _make_command(run, "status --watch" if run.has_nodes else "log -f")


_MAY_CONTINUE = (
    ReadinessKind.READY,
    ReadinessKind.HELD,
    ReadinessKind.NOT_YET,
    ReadinessKind.PERSON,
)


def _command_for_run(run: RunSituation) -> NextCommand:
    """Return the command that continues a run on which no process works."""
    head, readiness = run.head, run.readiness
    if head is None or readiness is None:
        return _command_for_next_step(run, None)
    command = _command_for_next_step(run, readiness.until)
    match readiness.kind:
        case ReadinessKind.STOPPED if head.moved_to is not None:
            advice = "first name the place of the run ('store:') in orchestration.yaml"
            command = _make_project_command("trust", advice)
        case ReadinessKind.PAUSED | ReadinessKind.STOPPED:
            command = _make_command(run, "resume")
        case ReadinessKind.PERSON:
            is_question = head.is_at_gate or head.status is Status.WAITING_APPROVAL
            command = _make_command(run, "inbox" if is_question else "resume")
        case ReadinessKind.COMPLETE if run.merge:
            command = NextCommand(one_line(run.merge), "its work is not merged")
        case ReadinessKind.COMPLETE:
            command = _make_command(run, "report", _format_auto_start(run) or _format_restart(run))
        case ReadinessKind.REFUSED:
            command = _make_command(
                run, "retry", f"{format_command(run.name, 'log')} says what happened"
            )
        case ReadinessKind.LIMIT:
            command = _command_for_limit(readiness.message)
    return command


def _command_for_next_step(run: RunSituation, start_date: str | None) -> NextCommand:
    """Return the command that starts the next step, which may have to wait until *start_date*."""
    if run.stopped_by:
        return _command_for_budgets(run)
    due_date = start_date or run.until
    return _make_command(
        run,
        "run",
        f"it waits until {format_time(due_date)}" if due_date else _format_auto_start(run),
    )


def _format_auto_start(run: RunSituation) -> str:
    return f"{run.next_start} by itself" if run.next_start else ""


def _format_restart(run: RunSituation) -> str:
    return f"{run.restart_command or format_command(run.name, 'reset')} starts it again"


def _command_for_limit(message: str) -> NextCommand:
    """Return the command to type after raising the limit that *message* names."""
    key = re.search(r"\b(?:limits|teams)\.[\w.]*\w", message)
    setting = f"{key[0]} in orchestration.yaml" if key else "the limit where it is set"
    return _make_project_command("trust", f"first raise {setting}")


def _command_for_budgets(run: RunSituation) -> NextCommand:
    words = "; ".join(run.stopped_by)
    if "teams.max_failures" in words:
        return _make_command(run, "retry", f"{format_command(run.name, 'log')} says what happened")
    return _command_for_limit(words)


class InterruptedRun(Struct, frozen=True):
    """A run whose steps are still claimed, although the processes that ran them are gone."""

    run: Run
    claims: tuple[Claim, ...]
    next_command: NextCommand

    @property
    def words(self) -> str:
        """Return one line with the interrupted steps and the processes that ran them."""
        steps = ", ".join(repr(claim.step) for claim in self.claims)
        workers = self.run.list_attempt_processes() or {}
        holders = dict.fromkeys(workers.get(c.token) or c.owner.words for c in self.claims)
        verb = "was" if len(self.claims) == 1 else "were"
        gone = "is gone" if len(holders) == 1 else "are gone"
        return one_line(f"{steps} {verb} interrupted: {', '.join(holders)} {gone}")


def find_interruption(run: Run, head: Head) -> InterruptedRun | None:
    """Return *run*, which is at *head*, as interrupted; None: it is not.

    A run that is stopped or paused is not interrupted, nor is one with a live process.
    """
    holders = list_holders(run, head)
    dead_claims = [claim for claim, liveness in holders if liveness.allows_take_over]
    if not dead_claims or len(dead_claims) < len(head.claims) or head.exit or head.pause_requested:
        return None
    return InterruptedRun(run, tuple(dead_claims), next_command(read_situation(run, head)))


def restart_command(run: Run) -> str:
    """Return the command that starts the complete *run* again: `run` its flowchart, or `reset`."""
    source = find_flow_source(run.store)
    if source is None or source.file is None:
        return format_command(run.name, "reset")
    return format_other_command("sequencer", "run", source.file, "--new")


def list_holders(run: Run, head: Head) -> list[tuple[Claim, Liveness]]:
    """Return each claim of *head* with the liveness of its holder."""
    return [(claim, run.store.liveness(claim)) for claim in head.claims]


def drop_gone_claims(head: Head, holders: Iterable[tuple[Claim, Liveness]]) -> Head:
    """Return *head* without the claims that may be taken over; *holders* has all its claims."""
    return head.drop_claims(
        {claim.token for claim, liveness in holders if liveness.allows_take_over}
    )


def read_situation(run: Run, head: Head) -> RunSituation:
    """Return what *run* and its *head* alone say, without trust, losses, schedules and merges."""
    holders = list_holders(run, head)
    situation = RunSituation(run.name, head, holders=[liveness for _, liveness in holders])
    try:
        workflow = run.workflow_for(head)
        ensure_definition(head, workflow)
        readiness = run.readiness_at(drop_gone_claims(head, holders), workflow)
    except (ConfigurationError, DefinitionChanged) as error:
        return replace(situation, problem=error)
    fields: dict[str, Any] = {"has_nodes": bool(workflow.nodes), "readiness": readiness}
    if head.status is Status.COMPLETE:
        fields["restart_command"] = restart_command(run)
    return replace(situation, takes_over=take_over_options(run, workflow, holders), **fields)


def take_over_options(
    run: Run, workflow: Workflow | None, holders: Iterable[tuple[Claim, Liveness]]
) -> str:
    """Return the options of `run` that continue the step of a process that is gone.

    If a process in mode sync waits for the turns of other positions, only the rest is continued.
    Otherwise no options are needed.
    """
    dead_claim = next((claim for claim, liveness in holders if liveness.allows_take_over), None)
    if dead_claim is None or workflow is None or workflow.nodes:
        return ""
    names = {position_at(workflow, index) for index in range(len(workflow.steps))}
    positions = list_unserved_positions(workflow, run.store, dead_claim.step_index)
    if len(positions) == len(names):
        return ""
    return f"--mode sync {format_position_options(positions)}"
