"""What `run` and `tick` are asked to do: worked on, or shown by ``--dry-run``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from sequencer.assembly.agents import AgentOverrides, choose_agent, known_agents
from sequencer.assembly.flows import run_of as run_of_flow
from sequencer.cli.context import Invocation
from sequencer.cli.options import hide_in
from sequencer.cli.run_work import Plan, ensure_sensible, locate, run_of, started_at, work
from sequencer.cli.views.text import one_line
from sequencer.engine.fitting import fitted, optional_of
from sequencer.engine.loop import Mode
from sequencer.engine.run import Run
from sequencer.errors import SequencerError, UnknownName, UsageRefused
from sequencer.executors.protocol import Executor
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits
from sequencer.model.line.order import describe, place, resolve
from sequencer.model.net.source import FlowSource
from sequencer.model.standing import Readiness
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.project import Project
from sequencer.workflows.prompts import prompt_path
from sequencer.workflows.registry import with_defaults

SYNC_STEPS = 500
"""Of a process in mode sync that nobody gave a number: it waits for its turns over days, and an
agent that has nothing to do any more must not be asked forever."""


def perform(
    invocation: Invocation,
    *,
    is_tick: bool = False,
    dry_run: bool,
    rehearse: bool,
    positions: tuple[str, ...],
    start_prompt: str | None = None,
    step_index: int | None = None,
    **options: Any,
) -> int:
    """Do what the options of `run` or `tick` say and return the exit code."""
    overrides = AgentOverrides(dict(options.pop("agent_prompt")), dict(options.pop("agent_step")))
    project = _opened(invocation, options, overrides, rehearses=rehearse)
    if not dry_run:
        # A timer has nobody to ask, also where a person has typed it.
        project.ensure_may_act(may_ask=not is_tick)
    source = _chosen_flow(invocation, project, options)
    mode = Mode.TICK if is_tick else Mode(project.settings.run.mode)
    _ensure_meant(mode, step_index, positions, options["max_wait"])
    plan = Plan(mode, _limits(project, mode), positions, step_index, source)
    if start_prompt is not None:
        plan = started_at(invocation, project, plan, start_prompt, dry_run)
    return (show if dry_run else work)(invocation, project, plan)


def _opened(
    invocation: Invocation, options: dict[str, Any], overrides: AgentOverrides, *, rehearses: bool
) -> Project:
    """Return the project with the *options* laid over its settings.

    Raises:
        ConfigurationError: they don't fit to it.
    """
    project = invocation.project(options, overrides, rehearses=rehearses)
    if options["router"] and project.settings.router.prompt is None:
        raise UsageRefused(
            "there is no router to ask", where="--router", hint="router.prompt names its prompt"
        )
    # Also those of steps that come late.
    known = known_agents(project.settings)
    for option, table in (
        ("--agent-prompt", overrides.by_prompt),
        ("--agent-step", overrides.by_step),
    ):
        for name, agent in table.items():
            if agent not in known:
                raise UnknownName("agent", agent, known, where=f"{option} {name}={agent}")
    return project


def _ensure_meant(
    mode: Mode, step_index: int | None, positions: tuple[str, ...], max_wait: float | None
) -> None:
    """Return if every option has a meaning in *mode*.

    Raises:
        UsageRefused: one has none.
    """
    if mode is Mode.TICK and max_wait:
        raise UsageRefused(
            "tick never waits", where="--max-wait",
            hint=f"'sequencer run --max-steps 1 --max-wait {max_wait:g}' does",
        )  # fmt: skip
    if step_index is not None and mode is not Mode.ASYNC:
        raise UsageRefused(
            f"mode {mode} goes on where the run is", where="--step-index",
            hint="it is for --mode async; 'sequencer rewind' moves the run",
        )  # fmt: skip
    for option, value in (("--position", positions), ("--max-wait", max_wait)):
        if mode is Mode.ASYNC and value:
            raise UsageRefused("mode async has no turns to take or wait for", where=option)


def _limits(project: Project, mode: Mode) -> InvocationLimits:
    """Return the limits of this invocation."""
    defaults = project.settings.run
    is_default = project.settings.sources["run", "max_steps"].kind == "default"
    return InvocationLimits(
        max_steps=SYNC_STEPS if is_default and mode is Mode.SYNC else defaults.max_steps,
        max_cycles=defaults.max_cycles,
        max_cost_usd=defaults.max_cost_usd,
        max_wait_s=0 if mode is Mode.TICK else defaults.max_wait_s,
        step_timeout_s=defaults.step_timeout_s,
    )


def _chosen_flow(
    invocation: Invocation, project: Project, options: dict[str, Any]
) -> FlowSource | None:
    """Return what a run of the flowchart that was asked for begins with.

    The invocation is about that run from now on.
    """
    asked, state = options.get("flow"), options.get("state") or {}
    if asked is None:
        for option in ("state", "new"):
            if options.get(option):
                hint = "name it: run FLOW"
                raise UsageRefused("is for a flowchart", where=f"--{option}", hint=hint)
        return None
    if options["workflow"] is not None:
        raise UsageRefused(
            f"{asked!r} is the workflow already", where="--workflow", hint="leave one out"
        )
    safe = {key: hide_in(project.redaction, value) for key, value in state.items()}
    invocation.notices(
        f"--state {key}: a secret is kept as [secret]"
        for key, value in state.items()
        if safe[key] != value
    )
    name = invocation.run_name
    invocation.run_name, source = run_of_flow(project, asked, safe, name, anew=options["new"])
    return source


Report = dict[str, Any]
Found = TypeVar("Found")


def show(invocation: Invocation, project: Project, plan: Plan) -> int:
    """Print what *plan* would do first; nothing is changed."""
    run = run_of(invocation, plan)
    head = None if plan.mode is Mode.ASYNC else run.view().head
    workflow = run.workflow_for(head)
    ensure_sensible(project, workflow)
    if workflow.nodes:
        report = _report_of_a_graph(project, plan, run, workflow)
    else:
        report = _report(project, plan, run, head, workflow)
    if invocation.is_json:
        invocation.print_json(report)
        return 0
    for name, value in report.items():
        for line in value if isinstance(value, list) else (value,):
            if line is not None:
                invocation.echo(f"{name.replace('_', ' '):<12}  {one_line(_said(line))}")
    return 0


def _said(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return str(value)


def _report(
    project: Project, plan: Plan, run: Run, head: Head | None, workflow: Workflow
) -> Report:
    present = 0 if head is None else head.step_index
    index = present if plan.step_index is None else plan.step_index
    report: Report = {
        "mode": str(plan.mode),
        "run": run.name,
        "workflow": workflow.name,
        "limits": plan.limits.model_dump(exclude_none=True),
    }
    obstacles = list(_in_the_way(plan, run, head, workflow))
    if not place(workflow, index).is_end:
        report |= _step(project, workflow, index, obstacles)
    report["in_the_way"] = obstacles
    return report


def _report_of_a_graph(project: Project, plan: Plan, run: Run, workflow: Workflow) -> Report:
    obstacles: list[str] = []
    upcoming = _tried(obstacles, lambda: [node["step"] for node in run.next(len(workflow.steps))])
    here = _tried(obstacles, run.standing)
    if here is not None and here.kind is not Readiness.READY:
        obstacles.append(here.message)
    agents = {}
    optional = optional_of(workflow)
    for step in workflow.steps:
        build = partial(_built, project, step, optional.get(step.name, ()))
        built = _tried(obstacles, build, lambda error: locate(error, project, run, workflow, plan))
        if built is not None:
            agents[step.name] = built[0]
            obstacles += [text for text in built[1].problems() if text not in obstacles]
    return {
        "mode": str(plan.mode),
        "run": run.name,
        "workflow": workflow.name,
        "limits": plan.limits.model_dump(exclude_none=True, exclude={"max_steps"}),
        "next": ", ".join(upcoming or ()) or "nothing",
        "agents": agents,
        "in_the_way": obstacles,
    }


def _built(project: Project, step: Step, optional: tuple[str, ...]) -> tuple[str, Executor]:
    """Return who performs the graph's *step*, and check that it can."""
    whole = with_defaults(step, project.settings.step_defaults)
    return project.agents.choose(fitted(project.agents, whole, step.name, optional)[0], step.name)


def _in_the_way(plan: Plan, run: Run, head: Head | None, workflow: Workflow) -> Iterator[str]:
    """Yield why nothing would start, apart from the step itself."""
    if head is None:
        return
    try:
        ensure_definition(head, workflow)
        here = run.standing()
    except SequencerError as error:
        yield str(error)
        return
    if here is None or here.kind is Readiness.COMPLETE:
        yield "the run is complete"
        return
    if here.claim is not None:
        if not run.store.liveness(here.claim).allows_take_over:
            yield here.message
    elif here.kind is not Readiness.READY:
        yield here.message
    names = [step.name for step in workflow.steps]
    mine = {names[int(p)] if p not in names and p.isdecimal() else p for p in plan.positions}
    position = describe(workflow, head.step_index)["position"]
    if mine and position not in mine:
        yield f"the step is at position {position}, which is not among --position"


def _step(project: Project, workflow: Workflow, index: int, obstacles: list[str]) -> Report:
    """Return the step at *index*; what it lacks is added to *obstacles*."""
    settings = project.settings
    step = with_defaults(resolve(workflow, index), settings.step_defaults)
    facts = describe(workflow, index)
    report: Report = {
        "step_index": index,
        "iteration": facts["iteration"],
        "step": step.name,
        "position": facts["position"],
    }
    if step.description:
        report["description"] = step.description
    chosen = _tried(
        obstacles, lambda: choose_agent(settings, step, facts["position"], project.agents.overrides)
    )
    built = _tried(obstacles, lambda: project.agents.choose(step, facts["position"]))
    if chosen is not None:
        report["agent"] = built[0] if built else chosen.name
        report["chosen_by"] = "--rehearse" if project.rehearses else chosen.source
    if built is not None:
        obstacles += built[1].problems()
    report["prompt"] = _tried(obstacles, lambda: _prompt(project, step, built and built[1]))
    if settings.router.is_active and not project.rehearses:
        report["router"] = f"{settings.router.mode}: {settings.router.prompt} may choose another"
    budget = {"timeout_s": step.timeout_s, "max_cost_usd": step.max_cost_usd}
    report["budget"] = {key: value for key, value in budget.items() if value is not None}
    return report


def _prompt(project: Project, step: Step, executor: Executor | None) -> str:
    """Return the path of the prompt's file, after reading it as the step would."""
    if executor is not None and not project.prompts.read_for(step, executor):
        return f"none: {step.prompt_name} is missing or empty"
    return str(prompt_path(project.settings.prompts_dir, step.prompt_name))


def _tried(
    obstacles: list[str],
    look: Callable[[], Found],
    place_error: Callable[[SequencerError], None] = lambda _: None,
) -> Found | None:
    try:
        return look()
    except SequencerError as error:
        place_error(error)
        if str(error) not in obstacles:
            obstacles.append(str(error))
        return None
