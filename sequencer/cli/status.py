"""`status`: how the run is doing, once or live; with ``--all``, a list of all runs.

Not promised: that --watch shows a change that is undone within a millisecond.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from sequencer import extensions
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.next_command import find_interruption, read_situation, run_state
from sequencer.cli.views.nodes import Frame
from sequencer.cli.views.readiness import LABEL_WIDTH, Snapshot, add_project_facts, take_snapshot
from sequencer.cli.views.runs import iter_started_runs, run_facts, unread_facts, visit_runs
from sequencer.cli.views.states import get_state_display
from sequencer.cli.views.tables import format_table
from sequencer.cli.views.text import age_s, one_line, terminal_width
from sequencer.engine.run import Run
from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import ConfigurationError, SequencerError, UsageRefused
from sequencer.model.head import Head
from sequencer.model.kind import ReadinessKind
from sequencer.model.limits import parse_time
from sequencer.model.outcome import Usage, format_cost, format_duration
from sequencer.project.posting import Pending
from sequencer.project.project import Project
from sequencer.project.scheduler import (
    describe_start,
    format_local_time,
    format_utc,
    get_scheduler,
    load_scheduler,
    parse_date,
    skipped_date_to_data,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

RECHECK_S = 60.0
AGE_S = 1.0
"""How often a live view updates the seconds of a running step."""
END = "Ctrl-C ends this view; the run continues"


@verb("status")
@click.option("--watch", is_flag=True, help="Keep running and show each change as it happens.")
@click.option("--all", "lists", is_flag=True, help="List all runs that are in progress.")
@click.option("--ended", is_flag=True, help="With --all: also list runs that have ended.")
@pass_invocation
def status(invocation: Invocation, *, watch: bool, lists: bool, ended: bool) -> None:
    """Show how the run is doing: next step, who runs it, what was used, what blocks it.

    --watch sleeps until the run changes. On a terminal it redraws; elsewhere it prints one
    line per change, or one object per change with --json. It ends when the run is complete,
    stopped, at a limit, or has failed too often. Ctrl-C ends it too.

    \b
    Examples:
      sequencer status
      sequencer status --json | jq .next.step
      sequencer --run nightly status --watch
      sequencer status --all
    """
    if (lists and watch) or (ended and not lists):
        raise UsageRefused(
            "--all and --watch can't be used together, and --ended works only with --all",
            where="sequencer status",
        )
    if lists and invocation.run_name is not None:
        raise UsageRefused(
            "--all lists all runs, so it and --run can't be used together", where="sequencer status"
        )
    if lists:
        _list_runs(invocation, with_ended=ended)
        return
    if watch:
        _watch(invocation, invocation.run())
        return
    run = invocation.run_to_show(is_listed=True)
    snapshot = next(_iter_snapshots(invocation, run))
    is_unused = run.name is None and snapshot.head is None
    if is_unused and not invocation.is_json and invocation.project().run_names():
        # There are only named runs, so a person wants to see those.
        _list_runs(invocation, with_ended=False)
    elif invocation.is_json:
        invocation.print_json(snapshot.as_json())
    else:
        invocation.echo(
            snapshot.format_text(terminal_width(sys.stdout)), colored=partial(_color_line, snapshot)
        )
    invocation.show_notices(snapshot.notices)


_ROW_COLORS = {"in the way": "yellow", "failures  ": "red", "warning   ": "yellow"}


def _color_line(snapshot: Snapshot, line: str) -> str:
    """Return a *line* of `status` with the colors that a terminal shows."""
    if line.startswith("next: "):
        return click.style(line, bold=True)
    color = _ROW_COLORS.get(line[:LABEL_WIDTH])
    if line.startswith("status  "):
        color = snapshot.state.color
    return click.style(line, fg=color) if color else line


def _iter_snapshots(invocation: Invocation, run: Run) -> Iterator[Snapshot]:
    """Yield the state of *run*, taken again each time, with dates, pending posts and open work."""
    project = invocation.project()
    logs = project.logs(run.name, lambda _: None)
    line_functions, missing_lines = _find_line_functions(project)
    while True:
        snapshot = take_snapshot(run, logs)
        lost = None if snapshot.head is None else project.find_lost_steps(run, snapshot.head)
        snapshot = add_project_facts(project, run, snapshot, lost)
        if (date := load_scheduler(project).next_start(project, run)) is not None:
            snapshot = replace(snapshot, next_start=date)
        if (skipped_date := load_scheduler(project).find_skipped_date(project, run)) is not None:
            snapshot = replace(snapshot, skipped_start=skipped_date)
        if snapshot.head is not None and (posting := project.posting) is not None:
            snapshot = replace(snapshot, posts=posting.find_pending(run, snapshot.head))
        if unmerged_work := tuple(
            work for work in project.find_unmerged_work() if work.run == run.name
        ):
            snapshot = replace(snapshot, unmerged=unmerged_work)
        yield _add_package_lines(snapshot, project, run, line_functions, missing_lines)


AddedLines = Callable[[Project, Run], Iterable[tuple[str, str]]]


def _find_line_functions(project: Project) -> tuple[list[tuple[EntryPoint, AddedLines]], list[str]]:
    """Return the functions of enabled packages that yield lines, and notices about missing ones.

    If the project is not trusted as it is now, there are none: enabling a package must not run
    its code.
    """
    if not extensions.has_enabled_packages():
        return [], []
    if not project.trust.is_current:
        hint = "'sequencer trust' shows what it can do, and asks you"
        return [], [f"lines of packages are left out: the project is not trusted here; {hint}"]
    labels: list[str] = []
    functions = extensions.load_from_enabled_packages(
        extensions.STATUS_LINES, lambda error: labels.append(error.in_one_line)
    )
    return [*functions], labels


def _add_package_lines(
    snapshot: Snapshot,
    project: Project,
    run: Run,
    line_functions: Iterable[tuple[EntryPoint, AddedLines]],
    missing_lines: Iterable[str],
) -> Snapshot:
    """Return *snapshot* with the lines of packages, and a notice for each package that failed."""
    lines: list[tuple[str, str]] = []
    notices = [*snapshot.notices, *missing_lines]
    for point, lines_of in line_functions:
        try:
            with extensions.package_code(extensions.STATUS_LINES, point.name, point):
                lines += [(str(label), str(text)) for label, text in lines_of(project, run)]
        except ConfigurationError as error:
            notices.append(error.in_one_line)
    return replace(snapshot, package_lines=tuple(lines), notices=tuple(notices))


def _watch(invocation: Invocation, run: Run) -> None:
    is_live = (
        not invocation.is_json
        and sys.stdout is not None
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") != "dumb"
    )
    try:
        if is_live:
            _watch_live(invocation, run)
        else:
            _watch_lines(invocation, run)
    except KeyboardInterrupt:
        # Ctrl-C is how a person ends --watch, so it is not an error.
        return


def _watch_lines(invocation: Invocation, run: Run) -> None:
    """Print a line, or a JSON object, for every change."""
    printed_facts: Any = None

    def show(snapshot: Snapshot) -> None:
        nonlocal printed_facts
        facts = snapshot.as_json()
        if facts == printed_facts:
            return
        printed_facts = facts
        if invocation.is_json:
            invocation.print_json(facts)
        else:
            invocation.echo(snapshot.format_line())
        invocation.show_notices(snapshot.notices)

    _follow(invocation, run, show, lambda _: RECHECK_S)


def _watch_live(invocation: Invocation, run: Run) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console(highlight=False, markup=False, emoji=False)
    frame = Frame(sys.stdout)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(snapshot: Snapshot) -> None:
            console.size = frame.measure()
            frame.erase_stray_rows()
            header_lines = [
                *snapshot.format_lines(),
                *(f"notice: {one_line(n)}" for n in snapshot.notices),
            ]
            text = frame.render(
                snapshot.graph_view,
                snapshot.last_outputs,
                datetime.now(UTC),
                above=[(line, "") for line in header_lines],
                below=[
                    *_format_next_command(snapshot),
                    # The last frame stays on the screen after the view has ended.
                    *([(END, "dim")] if snapshot.end is None else []),
                ],
            )
            live.update(text, refresh=True)

        _follow(invocation, run, show, lambda snapshot: AGE_S if snapshot.busy else RECHECK_S)


def _format_next_command(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return the line that names the next command; empty while a process works on the run."""
    return [] if snapshot.busy else [(f"next: {snapshot.next_command.words}", "")]


def _follow(
    invocation: Invocation,
    run: Run,
    show: Callable[[Snapshot], None],
    pause_s: Callable[[Snapshot], float],
) -> None:
    """Show the run now and after every change, until nothing starts without a person."""
    for snapshot in _iter_snapshots(invocation, run):
        show(snapshot)
        if (end := snapshot.end) is not None:
            invocation.notify(f"nothing more starts on its own: {end}")
            return
        head = snapshot.head
        claim = head.claims[0] if head is not None and head.claims else None
        revision = head.revision if head is not None else 0
        # The claim of a dead process would end each wait at once: wait only for a live one.
        run.store.wait(revision, pause_s(snapshot), claim=claim if snapshot.busy else None)


def _list_runs(invocation: Invocation, *, with_ended: bool) -> None:
    """List the runs with their procedure, step, status, age and cost."""
    project = invocation.project()
    ended_runs, states = [], dict[str | None, str]()
    for run, result in visit_runs(iter_started_runs(project), partial(_collect_facts, project)):
        if isinstance(result, SequencerError):
            facts, states[run.name] = unread_facts(run, result), "unreadable"
        else:
            facts, states[run.name] = result
        ended_runs.append(facts)
    unmerged_work = [*project.find_unmerged_work()]
    # An ended run is still listed while its posts or its unmerged work need attention.
    listed_rows = [
        facts
        for facts in ended_runs
        if with_ended
        or not facts["ended"]
        or any(post["pending"] or post["error"] for post in facts["posts"])
        or any(work.run == facts["run"] for work in unmerged_work)
    ]
    listed_rows = [*_add_turns(project, [*_add_scheduled_runs(project, listed_rows)])]
    listed_rows = [*_add_unmerged_work(listed_rows, unmerged_work)]
    invocation.show_notices(
        dict.fromkeys(text for facts in listed_rows for text in facts.get("notices", ()))
    )
    if invocation.is_json:
        invocation.print_json(listed_rows)
        return
    if not listed_rows:
        note = f"; {len(ended_runs)} have ended (add --ended)" if ended_runs else ""
        invocation.echo(f"no run is in progress{note}")
        return
    rows = [_format_row(facts, states.get(facts["run"], facts["status"])) for facts in listed_rows]
    heads = ("RUN", "WORKFLOW", "STEP", "STATUS", "AGE", "COST", "TITLE")
    invocation.echo(
        format_table(heads, rows, max_width=invocation.max_width, goes=(4, 1), whole={0}, prose={6})
    )
    for facts in listed_rows:
        for line in _format_waits(facts):
            invocation.echo(f"{_format_name(facts)}: {one_line(line)}")
        for post in facts["posts"]:
            text = Pending(**post).format_text(lambda at: format_duration(age_s(at) or 0.0))
            invocation.echo(f"{_format_name(facts)}: {one_line(text)}")
        for work in facts.get("unmerged", ()):
            invocation.echo(f"{_format_name(facts)}: {one_line(work['unmerged'])}")
            for command in work["commands"]:
                invocation.echo(f"  {one_line(command)}")


def _add_scheduled_runs(project: Project, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield *rows*, the started runs, then scheduled runs that only wait for their date."""
    dates = {
        run.name: format_utc(date)
        for run, date in load_scheduler(project).list_scheduled_runs(project)
        if date is not None
    }
    for facts in rows:
        date = dates.pop(facts["run"], None)
        yield facts if date is None else {**facts, "starts_at": date}
    for name, date in dates.items():
        workflow = load_scheduler(project).workflows(project)[name or ""]
        facts = {"run": name, "ended": False, "workflow": workflow, "status": "scheduled"}
        skipped_date = skipped_date_to_data(
            load_scheduler(project).find_skipped_date(project, project.run(name))
        )
        waits = {"kind": "date", "message": describe_start(parse_date(date)), "until": date}
        yield {
            **facts,
            "starts_at": date,
            "posts": [],
            "waits_for": waits,
            "left_out": skipped_date,
        }


def _collect_facts(project: Project, run: Run, head: Head) -> tuple[dict[str, Any], str]:
    """Return the facts that the list shows about *run*, with what it waits for, and its state."""
    facts, state = run_facts(project, run, head), run_state(read_situation(run, head))
    facts["left_out"] = skipped_date_to_data(
        load_scheduler(project).find_skipped_date(project, run)
    )
    facts["notices"] = list(run.view().notices)
    if (interruption := find_interruption(run, head)) is not None:
        message = f"{interruption.words}; {interruption.next_command.line}"
        facts["waits_for"] = {"kind": "interrupted", "message": message, "until": None}
        return facts, state
    with suppress(SequencerError):  # `check` reports what is wrong with the run
        readiness = run.readiness_at(head, run.workflow_for(head))
        if readiness.kind not in (ReadinessKind.HELD, ReadinessKind.COMPLETE):
            kind, until = str(readiness.kind), readiness.until
            facts["waits_for"] = {"kind": kind, "message": readiness.message, "until": until}
    return facts, state


def _add_turns(project: Project, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield *rows*, the runs, each with its turn in `tick --all`; None: it can't move now."""
    open_runs = [(project.run(facts["run"]), facts) for facts in rows if not facts["ended"]]
    now = format_utc(time.time())
    ready_names = {
        facts["run"] or ""
        for _, facts in open_runs
        if (waits := facts.get("waits_for"))
        and (
            waits["kind"] == ReadinessKind.READY
            or (waits["kind"] == "date" and waits["until"] <= now)
        )
    }
    turns = get_scheduler().turns(project, open_runs, ready_names)
    for facts in rows:
        yield {**facts, "turn": turns.get(facts["run"] or "")}


def _format_waits(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines about what the run with *facts* waits for, and the start that it missed."""
    waits = facts.get("waits_for") or {"kind": "date"}
    if facts.get("turn"):
        yield f"waits for its turn: {facts['turn']} in the line of 'tick --all'"
    elif waits["kind"] not in ("date", ReadinessKind.READY):
        yield f"waits: {waits['message']}"
    if skipped_start := facts.get("left_out"):
        date = format_local_time(parse_date(skipped_start["date"]))
        yield f"did not start at {date}: {skipped_start['reason']}"


def _add_unmerged_work(
    rows: list[dict[str, Any]], unmerged_work: Sequence[UnmergedWork]
) -> Iterator[dict[str, Any]]:
    """Yield *rows* with their *unmerged_work*, then removed runs that still have some."""
    names = {facts["run"] for facts in rows}
    for facts in rows:
        items = [work for work in unmerged_work if work.run == facts["run"]]
        yield {**facts, "unmerged": [work.as_json() for work in items]} if items else facts
    for name in dict.fromkeys(work.run for work in unmerged_work if work.run not in names):
        items = [work for work in unmerged_work if work.run == name]
        removed_run: dict[str, Any] = {"run": name, "ended": True, "posts": []}
        removed_run |= {"workflow": "", "status": "removed"}
        yield {**removed_run, "unmerged": [work.as_json() for work in items]}


def _format_name(facts: Mapping[str, Any]) -> str:
    return one_line(facts["run"] or "(default)")


def _format_row(facts: dict[str, Any], state: str) -> tuple[str, ...]:
    name, word = _format_name(facts), get_state_display(state).word
    if "error" in facts:
        return (name, "", "", word, "", "", one_line(facts["error"]))
    date = parse_time(facts.get("starts_at", ""))
    start = describe_start(date.timestamp()) if date else ""
    if "step_index" not in facts:
        return (name, one_line(facts["workflow"]), "", word, "", "", start)
    total = f"/{facts['steps']}" if facts["steps"] else ""
    number = facts["step_index"] + (0 if facts["ended"] else 1)
    # At the gate after its last step, a run has no next step.
    number = min(number, facts["steps"] or number)
    step = f"{number}{total} {facts['step']}".rstrip()
    age = format_duration(facts["age_s"]) if facts["age_s"] is not None else ""
    usage = {key: facts[key] for key in ("unpriced", "estimated_usd")}
    cost = format_cost(Usage(cost_usd=facts["cost_usd"] or 0.0, **usage), 2)
    title = start or one_line(facts["title"] or "")
    return (name, one_line(facts["workflow"]), one_line(step), word, age, cost, title)
