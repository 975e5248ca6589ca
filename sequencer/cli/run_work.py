"""The work of one `run` or `tick`: its plan, its progress, and the line at the end.

At a gate, a person at the terminal is asked and the work continues. Not promised: that an ending
process releases its claim; see `signals.ForcedExit`.
"""

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
from sequencer.cli.context import (
    Invocation,
    json_text,
    relativize_paths,
    shorten_notices,
    write_to_stderr,
)
from sequencer.cli.options import hide_in
from sequencer.cli.signals import (
    EndOnSignal,
    ForcedExit,
    as_interruption,
    max_shutdown_s,
    unknown_end_error,
)
from sequencer.cli.tick_news import announce_left_out, explain, need_or_none, news_at_end
from sequencer.cli.views.next_command import restart_command
from sequencer.cli.views.progress import (
    PlainProgress,
    QuietProgress,
    WorkCount,
    make_progress_view,
    summary_json,
    summary_line,
)
from sequencer.engine.events import NoticeGiven, RunEvent, combine_listeners, ignore
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
from sequencer.project.flows import add_location, load_current_graph
from sequencer.project.flows import resolve_run as flow_run_of
from sequencer.project.permissions import list_permissions
from sequencer.project.project import Project
from sequencer.project.scheduler import describe_start, load_scheduler
from sequencer.workflows.prompts import relative_name

if TYPE_CHECKING:
    from sequencer.cli.views.board import Board
    from sequencer.project.posting import Posting

RESTS = FINAL | {Answer.PAUSED}
"""Answers after which nothing happens until a person acts. A timer reports them only once."""
SYNC_STEPS = 500
"""The default limit in mode sync. Such a process may wait days for its turns, but must not keep
running an agent that has nothing left to do."""
STABLE = RESTS | {Answer.NOT_YET, Answer.READY}
"""Answers that stay the same for a tick without work while nothing changes. READY means here that
the step is at a position of another process."""


class Plan(Struct, frozen=True):
    """What one invocation of `run` or `tick` is asked to do."""

    mode: Mode
    limits: InvocationLimits
    positions: tuple[str, ...] = ()
    step_index: int | None = None
    """Where mode async starts; in a dry run, also the step that --start-at names."""
    source: FlowSource | None = None
    """The flow that the run of a graph starts with."""
    node: str | None = None
    """The node where a graph starts; None: its entries."""
    is_detached: bool = False
    """Whether workers do the steps and this process does not wait for them."""
    question: idle.IdleQuestion | None = None
    """The question of a tick, taken before the configuration was read."""

    def subtract_usage(self, now: Usage, before: Usage) -> Plan:
        """Return the plan with its limits reduced by the usage between *before* and *now*."""
        spent_limits = {
            "max_steps": now.steps - before.steps,
            "max_cost_usd": now.cost_usd - before.cost_usd,
        }
        limits = ((name, getattr(self.limits, name)) for name in spent_limits)
        remaining_limits = {
            name: max(limit - spent_limits[name], 0) for name, limit in limits if limit is not None
        }
        return replace(self, limits=self.limits.replace(**remaining_limits))


def prepare_plan(
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
    """Return the project, and the plan that the options of `run` or `tick` make."""
    if detach:
        _ensure_no_agent_options({**options, "rehearse": rehearse or None})
    question = None
    if is_tick:
        with suppress(SequencerError):  # the error is reported when the project is opened
            question = idle.parse_question(invocation.arguments, os.environ)
    overrides = AgentOverrides(dict(options.pop("agent_prompt")), dict(options.pop("agent_step")))
    project = _open_project(invocation, options, overrides, rehearses=rehearse)
    if not dry_run:
        # A tick asks no questions, even if a person typed it.
        project.ensure_may_act(may_ask=not is_tick)
    source = _choose_flow(invocation, project, options)
    if not dry_run and source is not None:
        project.ensure_may_act(source, may_ask=not is_tick)
    mode = Mode.TICK if is_tick else Mode(project.settings.run.mode)
    _ensure_fits_mode(mode, step_index, positions, options.get("max_wait"))
    plan = Plan(
        mode, _make_limits(project, mode), positions, step_index, source,
        is_detached=detach, question=question,
    )  # fmt: skip
    if start_at is not None:
        plan = _move_to_step(invocation, project, plan, start_at, dry_run)
    return project, plan


def _ensure_no_agent_options(values: Mapping[str, Any]) -> None:
    """Check that the options in *values* choose no agent.

    Raises:
        UsageRefused: one does, but workers use the agents in the project's files.
    """
    for name in ("agent", "agent_step", "agent_prompt", "router", "rehearse"):
        if values[name] not in (None, ()):
            raise UsageRefused(
                "chooses agents for this process, but workers do the steps",
                where=f"--{name.replace('_', '-')}",
                hint="set it in orchestration.yaml, or leave out --detach",
            )


def _open_project(
    invocation: Invocation, options: dict[str, Any], overrides: AgentOverrides, *, rehearses: bool
) -> Project:
    """Return the project with *options* applied over its settings.

    Raises:
        UsageRefused: --router is given, but no router is configured.
        UnknownName: an override names an unknown agent.
    """
    project = invocation.project(options, overrides, rehearses=rehearses)
    if options["router"] and project.settings.router.prompt is None:
        raise UsageRefused(
            "no router is configured", where="--router", hint="set router.prompt to its prompt"
        )
    # Checked now, even for steps that come late in the run.
    agent_names = known_agents(project.settings)
    option_tables = {"--agent-prompt": overrides.by_prompt, "--agent-step": overrides.by_step}
    for option, name, agent in (
        (o, n, a) for o, table in option_tables.items() for n, a in table.items()
    ):
        if agent not in agent_names:
            raise UnknownName("agent", agent, agent_names, where=f"{option} {name}={agent}")
    return project


def _ensure_fits_mode(
    mode: Mode, step_index: int | None, positions: tuple[str, ...], max_wait: float | None
) -> None:
    """Check that every option makes sense in *mode*.

    Raises:
        UsageRefused: one does not.
    """
    if step_index is not None and mode is not Mode.ASYNC:
        raise UsageRefused(
            f"mode {mode} continues where the run is", where="--step-index",
            hint="use it with --mode async; 'sequencer rewind' moves the run",
        )  # fmt: skip
    for option, value in (("--position", positions), ("--max-wait", max_wait)):
        if mode is Mode.ASYNC and value:
            raise UsageRefused("mode async has no turns to take or wait for", where=option)


def _make_limits(project: Project, mode: Mode) -> InvocationLimits:
    """Return the limits of this invocation, with the defaults of its *mode*."""
    defaults = project.settings.run
    is_sync = mode is Mode.SYNC and _is_default(project, "max_steps")
    return InvocationLimits(
        max_steps=SYNC_STEPS if is_sync else defaults.max_steps,
        max_cycles=defaults.max_cycles,
        max_cost_usd=defaults.max_cost_usd,
        max_wait_s=0 if mode is Mode.TICK else defaults.max_wait_s,
        step_timeout_s=defaults.step_timeout_s,
    )


def _choose_flow(
    invocation: Invocation, project: Project, options: dict[str, Any]
) -> FlowSource | None:
    """Return what the flow's run starts with, and select that run in *invocation*; None: no FLOW.

    Raises:
        UsageRefused: an option does not fit, or the flow can't start this run.
    """
    flow_name, state = options.get("flow"), options.get("state") or {}
    if flow_name is None:
        for option in ("state", "new"):
            if options.get(option):
                hint = "name it: run FLOW"
                raise UsageRefused("works only with a flowchart", where=f"--{option}", hint=hint)
        return None
    if options["workflow"] is not None:
        raise UsageRefused(
            f"{flow_name!r} is already the workflow",
            where="--workflow",
            hint="leave out one of them",
        )
    safe_state = {key: hide_in(project.redaction, value) for key, value in state.items()}
    invocation.show_notices(
        f"--state {key}: a secret is kept as [secret]"
        for key, value in state.items()
        if safe_state[key] != value
    )
    invocation.run_name, source = flow_run_of(
        project,
        flow_name,
        safe_state,
        invocation.run_name,
        is_new=options["new"],
        means_default=invocation.means_default,
    )
    return source


def _move_to_step(
    invocation: Invocation, project: Project, plan: Plan, name: str, is_dry: bool
) -> Plan:
    """Move the run to the next step with this *name* or prompt, and return the plan from there.

    The steps before it are skipped by hand, in one change. A graph's run that has not started
    will start at the node *name*. In mode async, or with *is_dry*, only the plan changes.

    Raises:
        UsageRefused: the step is not among the next ones; or the mode is sync, where several
            processes would decide where to start.
        UnknownName: no step, prompt or node has this *name*.
    """
    if plan.mode is Mode.SYNC:
        hint = "start once with --mode combined, or 'sequencer skip'"
        raise UsageRefused("does not work with mode sync", where="--start-at", hint=hint)
    run = select_run(invocation, plan)
    head = None if plan.mode is Mode.ASYNC else run.head
    workflow = run.workflow_for(head)
    if workflow.nodes:
        if name not in workflow.names:
            raise UnknownName("node", name, workflow.names, where="--start-at")
        if not is_dry:
            run.do(StartAt(name))
            invocation.notify(f"notice: the run starts with node {name!r}")
        return replace(plan, node=name)
    start_index = (plan.step_index or 0) if head is None else head.step_index
    index = _find_step_index(project, workflow, start_index, name)
    if plan.mode is Mode.ASYNC or is_dry:
        return replace(plan, step_index=index)
    if index > start_index:
        head = run.do(SkipTo(index, start_index, f"--start-at {name}")).head
        step = f"step {head.expected_step!r} (step_index {index})"
        invocation.notify(f"notice: {index - start_index} skipped; the run starts with {step}")
    return plan


def _find_step_index(project: Project, workflow: Workflow, start_index: int, name: str) -> int:
    """Return the next index, from *start_index* on, of a step with this *name* or prompt."""
    files = prompt_files(project.settings, workflow)
    names = {*files, *workflow.names}
    file = relative_name(project.settings.prompts_dir, name)
    wanted_steps = {name} & names or {step for step in files if files[step] == file}
    if not wanted_steps:
        raise UnknownName("step", name, names, where="--start-at")
    index = next_index(workflow, start_index, lambda place: place.step in wanted_steps)
    if index is None:
        hint = "'sequencer plan --count 12' shows them; 'sequencer rewind' goes back"
        message = f"{name} is not among the next steps"
        raise UsageRefused(message, where="--start-at", hint=hint)
    return index


def work(invocation: Invocation, project: Project, plan: Plan) -> int:
    """Work as *plan* says, and return the exit code.

    At a gate, a person at the terminal is asked, and the work continues.

    Raises:
        SequencerError: as `Run.work` does. With ``--json``, the summary is printed first; the
            caller reports the error.
    """
    run = invocation.run(may_begin=True) if plan.mode is Mode.TICK else None
    if run and (
        date := load_scheduler(project).start_due(
            project, run, invocation.notify, partial(announce_left_out, invocation)
        )
    ):
        _report_end(invocation, run, plan, Summary(describe_start(date)), is_idle=True)
        return 0
    with load_scheduler(project).report_skipped_date(project, run):
        return _work_through_gates(invocation, project, plan)


def _work_through_gates(invocation: Invocation, project: Project, plan: Plan) -> int:
    """Work, and ask the person at the terminal at each gate."""
    while True:
        old_usage = _read_usage(invocation, plan)
        try:
            with ForcedExit(max_shutdown_s(project)) as last_resort:
                return _work(invocation, project, plan, last_resort)
        except WaitsForPerson:
            # Don't ask a person who has already asked this process to end.
            if (
                last_resort.has_started
                or plan.mode is Mode.TICK
                or not inbox.ask_for_decision(invocation, invocation.run())
            ):
                raise
        # The limits apply to the whole invocation, not to each part between two questions.
        plan = plan.subtract_usage(_read_usage(invocation, plan), old_usage)


def _report_unknown_end(invocation: Invocation, run: Run, tally: WorkCount) -> None:
    error = unknown_end_error(run)
    write_to_stderr(str(error))
    _report_failure(invocation, run, None, tally.summarize(error), error.exit_code)


def _read_usage(invocation: Invocation, plan: Plan) -> Usage:
    head = None if plan.mode is Mode.ASYNC else _head_or_none(invocation.run(may_begin=True))
    return Usage() if head is None else head.usage


def _work(invocation: Invocation, project: Project, plan: Plan, last_resort: ForcedExit) -> int:
    run = select_run(invocation, plan)
    head = run.head if plan.mode is not Mode.ASYNC else None
    workflow = run.workflow_for(head)
    _ensure_startable(project, workflow, head)
    if workflow.default_max_steps is None and _is_default(project, "max_steps"):
        plan = replace(plan, limits=plan.limits.replace(max_steps=None))
    tally, view = WorkCount(), _make_view(invocation, project, workflow, plan)
    _show_permissions(invocation, project, workflow, plan, head)
    listener, is_async = combine_listeners(tally, view), plan.mode is Mode.ASYNC
    posting = None if is_async or plan.is_detached else project.posting
    last_resort.words = partial(_report_unknown_end, invocation, run, tally)
    try:
        # Posting is the outer context, so that a second Ctrl-C ends the wait for pending posts.
        with (
            _open_posting(posting, run, listener, workflow, last_resort) as post,
            EndOnSignal(
                last_resort.begin_before(lambda text: view(NoticeGiven(text))), tally.is_working
            ) as signals,
        ):
            load_scheduler(project).begin(project, run)
            summary = run.work(
                plan.mode,
                plan.limits,
                positions=plan.positions,
                on_event=combine_listeners(listener, post),
                on_ready=signals.on_ready,
                step_index=plan.step_index or 0,
                places=count_agent_slots(project, workflow),
                is_detached=plan.is_detached,
            )
    except SequencerError as cause:
        error = as_interruption(cause, run, last_resort)
        view.close()
        add_location(error, project, run, workflow, plan.source)
        head = None if is_async else _head_or_none(run)
        _report_failure(invocation, run, head, tally.summarize(error), error.exit_code)
        explain(invocation, run, head, error)
        raise error from error.__cause__
    finally:
        view.close()
    is_idle = plan.mode is Mode.TICK and not summary.has_worked
    text = _report_end(invocation, run, plan, summary, is_idle=is_idle)
    if workflow.nodes and head is not None and head.status == "complete":
        invocation.notify(f"the run was already complete: {restart_command(run)} starts it again")
    if is_idle and not tally.noticed:
        _remember(invocation, run, plan.question, summary.head, text)
    return 0


def _open_posting(
    posting: Posting | None,
    run: Run,
    listener: Callable[[RunEvent], None],
    workflow: Workflow,
    last_resort: ForcedExit,
) -> AbstractContextManager[Callable[[RunEvent], None]]:
    """Return a context that posts the run's events during the work; without *posting*, none."""
    if posting is None:
        return nullcontext(ignore)
    return posting.open_listener(
        run, lambda text: listener(NoticeGiven(text)), workflow, last_resort.note
    )


def _report_failure(
    invocation: Invocation, run: Run, head: Head | None, summary: Summary, code: int
) -> None:
    """With ``--json``, print the *summary* of the work before an error; note the error's run."""
    invocation.run_id = "" if head is None else head.run_id
    if invocation.is_json:
        summary.head = head
        invocation.print_json(summary_json(run, summary, code))


def _report_end(
    invocation: Invocation, run: Run, plan: Plan, summary: Summary, *, is_idle: bool
) -> str:
    """Print how the work ended, and return the text."""
    if is_idle and not summary.reason.startswith("nothing due"):
        project = invocation.project()
        if run.head is not None and (date := load_scheduler(project).next_start(project, run)):
            summary.reason += f"; {describe_start(date)}"
        summary.reason = f"nothing due: {summary.reason}"
    need = need_or_none(run, summary.head)
    invocation.news = news_at_end(invocation, plan.mode, summary, need)
    text = json_text(summary_json(run, summary, 0)) if invocation.is_json else summary_line(summary)
    # With --quiet, print only that a person has to act.
    if invocation.is_quiet and not invocation.is_json:
        text = text if need is not None and need.is_of_a_person else ""
    if text:
        invocation.echo(text)
    return text


def _ensure_startable(project: Project, workflow: Workflow, head: Head | None) -> None:
    """Check that the options name steps of *workflow* and a new run has all its prompts.

    Checked before an agent is paid for the first step.
    """
    ensure_known_names(project.settings, project.agents.overrides, workflow)
    if head is None and not workflow.nodes:
        from sequencer.project.readable import ensure_readable  # noqa: PLC0415 - a run starts once

        ensure_readable(project, workflow)


def _show_permissions(
    invocation: Invocation, project: Project, workflow: Workflow, plan: Plan, head: Head | None
) -> None:
    """Say what each agent may do, and warn about agents that don't fit the caps or the project.

    A tick says this only when it starts the run.
    """
    if head is not None and plan.mode is Mode.TICK:
        return
    for entry in list_permissions(project.agents, workflow):
        if entry.warning is None:
            invocation.notify(f"permissions: {entry.agent}: {entry.summary}")
        else:
            invocation.notify(f"warning: agent {entry.agent!r} {entry.warning}\n  {entry.hint}")

    settings = project.settings
    # `start` passes its own --max-cost, which is not in the settings.
    has_own_cap = plan.limits.max_cost_usd is not None and settings.run.max_cost_usd is None
    caps = [*(["--max-cost"] if has_own_cap else []), *settings.cost_caps(workflow)]
    for message, hint in agent_warnings(project, workflow, caps):
        invocation.notify(f"warning: {message}; {hint}")


def select_run(invocation: Invocation, plan: Plan) -> Run:
    """Return the run to work on. A flow's run gets the plan's source, to start with it."""
    if plan.source is None:
        return invocation.run(may_begin=True)
    return invocation.project().run(invocation.run_name, source=plan.source)


def _is_default(project: Project, name: str) -> bool:
    """Return whether ``run.NAME`` is unset."""
    return project.settings.get_source("run", name).kind == "default"


def count_agent_slots(project: Project, workflow: Workflow) -> int:
    """Return how many agents this process may run at once; for a team, the team's size."""
    size = workflow.parallel_tasks if _is_default(project, "max_parallel") else None
    return size or project.settings.run.max_parallel


def _make_view(
    invocation: Invocation, project: Project, workflow: Workflow, plan: Plan
) -> PlainProgress | Board | QuietProgress:
    """Return the view that shows the work on *workflow* while it runs."""
    if workflow.nodes and (run := select_run(invocation, plan)).head is None:
        # A graph's warnings are shown just before its run starts.
        current_graph = load_current_graph(project, run, workflow, plan.source)
        for warning in () if current_graph is None else current_graph.warnings:
            invocation.notify(f"warning: {warning}")
    if invocation.is_quiet or plan.is_detached or sys.stderr is None:
        return QuietProgress()
    if not workflow.nodes:
        return make_progress_view(project.redaction)
    from sequencer.cli.views.board import Board, make_screen  # noqa: PLC0415 - only graphs need it

    # The board reads through a store of its own, from another thread.
    board_run = project.run(invocation.run_name, source=plan.source)
    return Board(make_screen(sys.stderr, project.redaction), board_run, workflow.name)


def _remember(
    invocation: Invocation,
    run: Run,
    question: idle.IdleQuestion | None,
    known_head: Head | None,
    text: str,
) -> None:
    """Remember *text* as the answer of the next tick, if that tick is certain to answer the same.

    *text* is about the head *known_head*; nothing is remembered if the run has changed since then.
    """
    head = run.head
    if question is None or head is None or head != known_head or not run.kind.has_one_place:
        # A graph may wait for something outside its head.
        return
    readiness = run.readiness()
    if readiness is None or readiness.kind not in STABLE:
        return
    project = invocation.project()
    if not project.settings.store_kind.is_local:
        # Changes on other machines are only noticed by asking the store.
        return
    posting = project.posting
    if posting is not None and any(post.is_behind for post in posting.find_pending(run, head)):
        # The next tick has something to post.
        return
    notices = () if invocation.is_quiet else shorten_notices(project.settings.notices)
    notice_text = "".join(relativize_paths(f"notice: {notice}\n") for notice in notices)
    due_date, now = parse_time(readiness.until or ""), time.time()
    date = load_scheduler(project).find_next_look(project, run)
    deadline_s = min(
        math.inf if date is None else date, due_date.timestamp() if due_date else math.inf
    )
    deadline_s, is_rest = min(now + idle.DAY_S, deadline_s), readiness.kind in RESTS
    answer = idle.IdleAnswer(
        relativize_paths(f"{text}\n" if text else ""), notice_text, deadline_s, is_rest=is_rest
    )
    if question.state_path == run.store.state_path:
        idle.remember(question, answer, head.revision)


def _head_or_none(run: Run) -> Head | None:
    with suppress(SequencerError):
        return run.head
    return None
