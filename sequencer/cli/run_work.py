"""The work of one `run` or `tick`: its plan, progress, and the line at the end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from sequencer.cli import idle, inbox
from sequencer.cli.context import Invocation, complain, in_short, json_text, near
from sequencer.cli.options import hide_in
from sequencer.cli.signals import EndOnSignal, LastResort, as_told, longest_end_s, unknown_end
from sequencer.cli.tick_news import explain, need_or_none, news_at_end, tell_left_out
from sequencer.cli.views.next_command import again
from sequencer.cli.views.progress import (
    PlainProgress,
    Unseen,
    WorkCount,
    progress,
    summary_json,
    summary_line,
)
from sequencer.engine.events import Noticed, RunEvent, ignore, several
from sequencer.engine.invocation_budget import Mode, Summary
from sequencer.engine.run import Run
from sequencer.errors import (
    SequencerError,
    UnknownName,
    UsageRefused,
    WaitsForPerson,
)
from sequencer.model.commands import SkipTo, StartAt
from sequencer.model.graph.source import FlowSource
from sequencer.model.head import Head
from sequencer.model.kind import FINAL
from sequencer.model.kind import ReadinessKind as Answer
from sequencer.model.limits import InvocationLimits, parse_time
from sequencer.model.outcome import Usage
from sequencer.model.sequence.order import next_index
from sequencer.model.workflow import Workflow
from sequencer.project.agents import (
    AgentOverrides,
    ensure_known_names,
    known_agents,
    prompt_files,
)
from sequencer.project.costs import agent_warnings
from sequencer.project.flows import locate, written_of
from sequencer.project.flows import run_of as flow_run_of
from sequencer.project.permissions import permissions
from sequencer.project.project import Project
from sequencer.project.starts import starts_at, starts_of
from sequencer.workflows.prompts import relative_name

if TYPE_CHECKING:
    from sequencer.cli.views.board import Board
    from sequencer.project.posting import Posting

RESTS = FINAL | {Answer.PAUSED}
"""Nothing happens until a person acts. A timer reports this only once."""
SYNC_STEPS = 500
"""The default for a process in mode sync: it may wait for turns over days, and must not ask an
agent forever that has nothing left to do."""
STABLE = RESTS | {Answer.NOT_YET, Answer.READY}
"""Answers that a tick without work gets again while nothing changes. READY here means a step at
a position of another process."""


class Plan(Struct, frozen=True):
    """How to work."""

    mode: Mode
    limits: InvocationLimits
    positions: tuple[str, ...] = ()
    step_index: int | None = None
    """Where mode async starts; in a dry run, also where --start-at leads."""
    source: FlowSource | None = None
    """What the run of a graph starts with."""
    node: str | None = None
    """The node where it starts, if not at its entries."""
    is_detached: bool = False
    """Whether workers do the steps and this process does not wait for them."""
    question: idle.IdleQuestion | None = None
    """What a tick asks, as the configuration was before it was read."""

    def less(self, now: Usage, before: Usage) -> Plan:
        """Return the plan with what is left of its limits since *before*."""
        used = {
            "max_steps": now.steps - before.steps,
            "max_cost_usd": now.cost_usd - before.cost_usd,
        }
        limits = ((name, getattr(self.limits, name)) for name in used)
        left = {name: max(most - used[name], 0) for name, most in limits if most is not None}
        return replace(self, limits=self.limits.replace(**left))


def planned(
    invocation: Invocation,
    *,
    is_tick: bool = False,
    dry_run: bool,
    rehearse: bool,
    positions: tuple[str, ...],
    start_at: str | None = None,
    step_index: int | None = None,
    detach: bool = False,
    **options: Any,
) -> tuple[Project, Plan]:
    """Return the project and what the options of `run` or `tick` ask to do in it."""
    if detach:
        _ensure_of_workers({**options, "rehearse": rehearse or None})
    question = None
    if is_tick:
        with suppress(SequencerError):  # it is said when the project is opened
            question = idle.ask(invocation.arguments, os.environ)
    overrides = AgentOverrides(dict(options.pop("agent_prompt")), dict(options.pop("agent_step")))
    project = _opened(invocation, options, overrides, rehearses=rehearse)
    if not dry_run:
        # A tick asks nobody, even if a person typed it.
        project.ensure_may_act(may_ask=not is_tick)
    source = _chosen_flow(invocation, project, options)
    if not dry_run and source is not None:
        project.ensure_may_act(source, may_ask=not is_tick)
    mode = Mode.TICK if is_tick else Mode(project.settings.run.mode)
    _ensure_meant(mode, step_index, positions, options.get("max_wait"))
    plan = Plan(
        mode, _limits(project, mode), positions, step_index, source,
        is_detached=detach, question=question,
    )  # fmt: skip
    if start_at is not None:
        plan = _started_at(invocation, project, plan, start_at, dry_run)
    return project, plan


def _ensure_of_workers(given: Mapping[str, Any]) -> None:
    """Return if *given* options choose no agent: workers use the agents in the project's files."""
    for name in ("agent", "agent_step", "agent_prompt", "router", "rehearse"):
        if given[name] not in (None, ()):
            raise UsageRefused(
                "chooses agents for this process, but workers do the steps",
                where=f"--{name.replace('_', '-')}",
                hint="set it in orchestration.yaml, or leave out --detach",
            )


def _opened(
    invocation: Invocation, options: dict[str, Any], overrides: AgentOverrides, *, rehearses: bool
) -> Project:
    """Return the project with the *options* applied over its settings, if they fit."""
    project = invocation.project(options, overrides, rehearses=rehearses)
    if options["router"] and project.settings.router.prompt is None:
        raise UsageRefused(
            "no router is configured", where="--router", hint="set router.prompt to its prompt"
        )
    # Also those of steps that come late.
    known = known_agents(project.settings)
    given = {"--agent-prompt": overrides.by_prompt, "--agent-step": overrides.by_step}
    for option, name, agent in ((o, n, a) for o, table in given.items() for n, a in table.items()):
        if agent not in known:
            raise UnknownName("agent", agent, known, where=f"{option} {name}={agent}")
    return project


def _ensure_meant(
    mode: Mode, step_index: int | None, positions: tuple[str, ...], max_wait: float | None
) -> None:
    """Return if every option makes sense in *mode*; refuse one that doesn't."""
    if step_index is not None and mode is not Mode.ASYNC:
        raise UsageRefused(
            f"mode {mode} continues where the run is", where="--step-index",
            hint="use it with --mode async; 'sequencer rewind' moves the run",
        )  # fmt: skip
    for option, value in (("--position", positions), ("--max-wait", max_wait)):
        if mode is Mode.ASYNC and value:
            raise UsageRefused("mode async has no turns to take or wait for", where=option)


def _limits(project: Project, mode: Mode) -> InvocationLimits:
    """Return the limits of this invocation."""
    defaults = project.settings.run
    is_sync = mode is Mode.SYNC and _is_default(project, "max_steps")
    return InvocationLimits(
        max_steps=SYNC_STEPS if is_sync else defaults.max_steps,
        max_cycles=defaults.max_cycles,
        max_cost_usd=defaults.max_cost_usd,
        max_wait_s=0 if mode is Mode.TICK else defaults.max_wait_s,
        step_timeout_s=defaults.step_timeout_s,
    )


def _chosen_flow(
    invocation: Invocation, project: Project, options: dict[str, Any]
) -> FlowSource | None:
    """Return what the run of the flowchart starts with; *invocation* then means that run."""
    asked, state = options.get("flow"), options.get("state") or {}
    if asked is None:
        for option in ("state", "new"):
            if options.get(option):
                hint = "name it: run FLOW"
                raise UsageRefused("works only with a flowchart", where=f"--{option}", hint=hint)
        return None
    if options["workflow"] is not None:
        raise UsageRefused(
            f"{asked!r} is already the workflow", where="--workflow", hint="leave out one of them"
        )
    safe = {key: hide_in(project.redaction, value) for key, value in state.items()}
    invocation.notices(
        f"--state {key}: a secret is kept as [secret]"
        for key, value in state.items()
        if safe[key] != value
    )
    name = invocation.run_name
    invocation.run_name, source = flow_run_of(project, asked, safe, name, anew=options["new"])
    return source


def _started_at(
    invocation: Invocation, project: Project, plan: Plan, name: str, is_dry: bool
) -> Plan:
    """Bring the run to the next step of this *name* or prompt, and return the plan from there.

    The steps before it are skipped by hand, in one change. The run of a graph, where nothing
    has started, starts at the node *name*. In mode async, or if it *is_dry*, only the plan says
    where to start. In mode sync several processes would decide it, so that is refused.
    """
    if plan.mode is Mode.SYNC:
        hint = "start once with --mode combined, or 'sequencer skip'"
        raise UsageRefused("does not work with mode sync", where="--start-at", hint=hint)
    run = run_of(invocation, plan)
    head = None if plan.mode is Mode.ASYNC else run.head
    workflow = run.workflow_for(head)
    if workflow.nodes:
        if name not in workflow.names:
            raise UnknownName("node", name, workflow.names, where="--start-at")
        if not is_dry:
            run.do(StartAt(name))
            invocation.say(f"notice: the run starts with node {name!r}")
        return replace(plan, node=name)
    present = (plan.step_index or 0) if head is None else head.step_index
    index = _index_of(project, workflow, present, name)
    if plan.mode is Mode.ASYNC or is_dry:
        return replace(plan, step_index=index)
    if index > present:
        head = run.do(SkipTo(index, present, f"--start-at {name}")).head
        step = f"step {head.expected_step!r} (step_index {index})"
        invocation.say(f"notice: {index - present} skipped; the run starts with {step}")
    return plan


def _index_of(project: Project, workflow: Workflow, present: int, name: str) -> int:
    """Return where the step called *name*, or one with this prompt, comes next."""
    files = prompt_files(project.settings, workflow)
    names = {*files, *workflow.names}
    file = relative_name(project.settings.prompts_dir, name)
    wanted = {name} & names or {one for one in files if files[one] == file}
    if not wanted:
        raise UnknownName("step", name, names, where="--start-at")
    index = next_index(workflow, present, lambda there: there.step in wanted)
    if index is None:
        hint = "'sequencer plan --count 12' shows them; 'sequencer rewind' goes back"
        message = f"{name} is not among the next steps"
        raise UsageRefused(message, where="--start-at", hint=hint)
    return index


def work(invocation: Invocation, project: Project, plan: Plan) -> int:
    """Work as *plan* says and return the exit code; the caller shows an error.

    At a gate, the person at the terminal is asked, and the work continues.

    Raises:
        SequencerError: see `Run.work`; with ``--json`` the summary is printed before.
    """
    run = invocation.run(may_begin=True) if plan.mode is Mode.TICK else None
    if run and (
        date := starts_of(project).start_due(
            project, run, invocation.say, partial(tell_left_out, invocation)
        )
    ):
        _tell_end(invocation, run, plan, Summary(starts_at(date)), is_idle=True)
        return 0
    with starts_of(project).telling_skipped(project, run):
        return _worked(invocation, project, plan)


def _worked(invocation: Invocation, project: Project, plan: Plan) -> int:
    """Work, and ask the person at the terminal as often as a gate wants it."""
    while True:
        before = _usage_of(invocation, plan)
        try:
            with LastResort(longest_end_s(project)) as last:
                return _work(invocation, project, plan, last)
        except WaitsForPerson:
            # A prompt would wait for somebody who has told it to end.
            if (
                last.has_begun
                or plan.mode is Mode.TICK
                or not inbox.decide(invocation, invocation.run())
            ):
                raise
        # The limits count for the whole invocation, across questions.
        plan = plan.less(_usage_of(invocation, plan), before)


def _say_unknown(invocation: Invocation, run: Run, tally: WorkCount) -> None:
    error = unknown_end(run)
    complain(str(error))
    _tell_failed(invocation, run, None, tally.summary(error), error.exit_code)


def _usage_of(invocation: Invocation, plan: Plan) -> Usage:
    head = None if plan.mode is Mode.ASYNC else _head_or_none(invocation.run(may_begin=True))
    return Usage() if head is None else head.usage


def _work(invocation: Invocation, project: Project, plan: Plan, last: LastResort) -> int:
    run = run_of(invocation, plan)
    head = run.head if plan.mode is not Mode.ASYNC else None
    workflow = run.workflow_for(head)
    _ensure_fitting(project, workflow, head)
    if workflow.default_max_steps is None and _is_default(project, "max_steps"):
        plan = replace(plan, limits=plan.limits.replace(max_steps=None))
    tally, shown = WorkCount(), _view(invocation, project, workflow, plan)
    _tell_of_agents(invocation, project, workflow, plan, head)
    seen, is_async = several(tally, shown), plan.mode is Mode.ASYNC
    posting = None if is_async or plan.is_detached else project.posting
    last.words = partial(_say_unknown, invocation, run, tally)
    try:
        # Outside, so that a second Ctrl-C ends the wait for what is still to be posted.
        with (
            _posted(posting, run, seen, workflow, last) as post,
            EndOnSignal(
                last.before(lambda text: shown(Noticed(text))), tally.is_working
            ) as signals,
        ):
            starts_of(project).begin(project, run)
            summary = run.work(
                plan.mode,
                plan.limits,
                positions=plan.positions,
                on_event=several(seen, post),
                on_ready=signals.on_ready,
                step_index=plan.step_index or 0,
                places=places(project, workflow),
                is_detached=plan.is_detached,
            )
    except SequencerError as raised:
        error = as_told(raised, run, last)
        shown.close()
        locate(error, project, run, workflow, plan.source)
        head = None if is_async else _head_or_none(run)
        _tell_failed(invocation, run, head, tally.summary(error), error.exit_code)
        explain(invocation, run, head, error)
        raise error from error.__cause__
    finally:
        shown.close()
    is_idle = plan.mode is Mode.TICK and not summary.has_worked
    text = _tell_end(invocation, run, plan, summary, is_idle=is_idle)
    if workflow.nodes and head is not None and head.status == "complete":
        invocation.say(f"the run was already complete: {again(run)} starts it again")
    if is_idle and not tally.noticed:
        _remember(invocation, run, plan.question, summary.head, text)
    return 0


def _posted(
    posting: Posting | None,
    run: Run,
    seen: Callable[[RunEvent], None],
    workflow: Workflow,
    last: LastResort,
) -> AbstractContextManager[Callable[[RunEvent], None]]:
    """Return what posts the run's events while the work goes on; None posts nothing."""
    if posting is None:
        return nullcontext(ignore)
    return posting.hear(run, lambda text: seen(Noticed(text)), workflow, last.note)


def _tell_failed(
    invocation: Invocation, run: Run, head: Head | None, done: Summary, code: int
) -> None:
    """Say what was done before an error, and note which run it is about."""
    invocation.run_id = "" if head is None else head.run_id
    if invocation.is_json:
        done.head = head
        invocation.print_json(summary_json(run, done, code))


def _tell_end(
    invocation: Invocation, run: Run, plan: Plan, summary: Summary, *, is_idle: bool
) -> str:
    """Say how it ended and return the text."""
    if is_idle and not summary.reason.startswith("nothing due"):
        project = invocation.project()
        if run.head is not None and (date := starts_of(project).next_start(project, run)):
            summary.reason += f"; {starts_at(date)}"
        summary.reason = f"nothing due: {summary.reason}"
    need = need_or_none(run, summary.head)
    invocation.news = news_at_end(invocation, plan.mode, summary, need)
    text = json_text(summary_json(run, summary, 0)) if invocation.is_json else summary_line(summary)
    # Asked to be quiet, it says why nothing goes on, and nothing of what went well.
    if invocation.is_quiet and not invocation.is_json:
        text = text if need is not None and need.is_of_a_person else ""
    if text:
        invocation.echo(text)
    return text


def _ensure_fitting(project: Project, workflow: Workflow, head: Head | None) -> None:
    """Return if the options name its steps, and a new run has all prompts before one is paid."""
    ensure_known_names(project.settings, project.agents.overrides, workflow)
    if head is None and not workflow.nodes:
        from sequencer.project.readable import ensure_readable  # noqa: PLC0415 - a run starts once

        ensure_readable(project, workflow)


def _tell_of_agents(
    invocation: Invocation, project: Project, workflow: Workflow, plan: Plan, head: Head | None
) -> None:
    """Say what each agent may do, which a cost cap can't stop, and which can't stand in.

    A tick says it only when it starts the run.
    """
    if head is not None and plan.mode is Mode.TICK:
        return
    for one in permissions(project.agents, workflow):
        if one.warning is None:
            invocation.say(f"permissions: {one.agent}: {one.says}")
        else:
            invocation.say(f"warning: agent {one.agent!r} {one.warning}\n  {one.hint}")

    settings = project.settings
    # `start` has its own option for it.
    is_own = plan.limits.max_cost_usd is not None and settings.run.max_cost_usd is None
    caps = [*(["--max-cost"] if is_own else []), *settings.cost_caps(workflow)]
    for message, hint in agent_warnings(project, workflow, caps):
        invocation.say(f"warning: {message}; {hint}")


def run_of(invocation: Invocation, plan: Plan) -> Run:
    """Return the run to work on; a graph's run that has not started gets its source."""
    if plan.source is None:
        return invocation.run(may_begin=True)
    return invocation.project().run(invocation.run_name, source=plan.source)


def _is_default(project: Project, name: str) -> bool:
    """Return whether ``run.NAME`` is unset."""
    return project.settings.source_of("run", name).kind == "default"


def places(project: Project, workflow: Workflow) -> int:
    """Return how many agents this process runs at once; for a team, the team's size."""
    size = workflow.parallel_tasks if _is_default(project, "max_parallel") else None
    return size or project.settings.run.max_parallel


def _view(
    invocation: Invocation, project: Project, workflow: Workflow, plan: Plan
) -> PlainProgress | Board | Unseen:
    """Return what shows the work on *workflow* while it runs."""
    if workflow.nodes and (run := run_of(invocation, plan)).head is None:
        # Warn about what is odd in a graph just before its run starts.
        written = written_of(project, run, workflow, plan.source)
        for warning in () if written is None else written.warnings:
            invocation.say(f"warning: {warning}")
    if invocation.is_quiet or plan.is_detached or sys.stderr is None:
        return Unseen()
    if not workflow.nodes:
        return progress(project.redaction)
    from sequencer.cli.views.board import Board, screen  # noqa: PLC0415 - only graphs need it

    own = project.run(invocation.run_name, source=plan.source)
    return Board(screen(sys.stderr, project.redaction), own, workflow.name)


def _remember(
    invocation: Invocation,
    run: Run,
    question: idle.IdleQuestion | None,
    seen: Head | None,
    text: str,
) -> None:
    """Keep *text* for the next tick, if it is certain to get the same answer.

    Somebody may have changed the run since it was *seen*, and *text* is about that.
    """
    head = run.head
    if question is None or head is None or head != seen or not run.kind.has_one_place:
        # A graph may wait for something outside its head.
        return
    here = run.readiness()
    if here is None or here.kind not in STABLE:
        return
    project = invocation.project()
    if not project.settings.store_kind.is_local:
        # What others do elsewhere is seen by looking only.
        return
    posting = project.posting
    if posting is not None and any(one.is_behind for one in posting.pending(run, head)):
        # The next tick has something to post.
        return
    notices = () if invocation.is_quiet else in_short(project.settings.notices)
    said = "".join(near(f"notice: {notice}\n") for notice in notices)
    due, now = parse_time(here.until or ""), time.time()
    date = starts_of(project).next_look(project, run)
    until = min(math.inf if date is None else date, due.timestamp() if due else math.inf)
    until, rests = min(now + idle.DAY_S, until), here.kind in RESTS
    answer = idle.IdleAnswer(near(f"{text}\n" if text else ""), said, until, is_rest=rests)
    if question.state_path == run.store.state_path:
        idle.remember(question, answer, head.revision)


def _head_or_none(run: Run) -> Head | None:
    with suppress(SequencerError):
        return run.head
    return None
