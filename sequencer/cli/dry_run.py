"""``--dry-run``: show what `run` or `tick` would do first, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from sequencer.cli.context import Invocation
from sequencer.cli.run_work import Plan, select_run
from sequencer.cli.views.text import one_line
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.run import Run
from sequencer.engine.supported_fields import drop_unsupported_fields, find_optional_fields
from sequencer.errors import SequencerError
from sequencer.executors.protocol import Executor
from sequencer.model.head import Head
from sequencer.model.kind import ReadinessKind
from sequencer.model.sequence.order import describe, find_step_ref, resolve
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow, ensure_definition
from sequencer.project.agents import agent_problems, choose_agent, ensure_known_names
from sequencer.project.flows import add_location
from sequencer.project.project import Project
from sequencer.workflows.prompts import prompt_path
from sequencer.workflows.registry import with_defaults

Report = dict[str, Any]
Found = TypeVar("Found")


def show(invocation: Invocation, project: Project, plan: Plan) -> int:
    """Print what *plan* would do first; nothing is changed."""
    run = select_run(invocation, plan)
    head = None if plan.mode is Mode.ASYNC else run.view().head
    workflow = run.workflow_for(head)
    ensure_known_names(project.settings, project.agents.overrides, workflow)
    hidden_keys = {"max_steps"} if workflow.nodes else set()
    obstacles: list[str] = []
    report: Report = {
        "mode": str(plan.mode),
        "run": run.name,
        "workflow": workflow.name,
        "limits": plan.limits.model_dump(exclude_none=True, exclude=hidden_keys),
    }
    if workflow.nodes:
        report |= _describe_nodes(project, plan, run, workflow, obstacles)
    else:
        obstacles += _find_obstacles(plan, run, head, workflow)
        if plan.step_index is not None:
            index = plan.step_index
        elif head is not None:
            index = head.step_index
        else:
            index = next((step.step_index for step in run.next()), 0)
        if not find_step_ref(workflow, index).is_end:
            report |= _describe_step(project, workflow, index, obstacles)
    report["in_the_way"] = obstacles
    if invocation.is_json:
        invocation.print_json(report)
        return 0
    for name, value in report.items():
        for line in value if isinstance(value, list) else (value,):
            if line is not None:
                invocation.echo(f"{name.replace('_', ' '):<12}  {one_line(_format_value(line))}")
    return 0


def _format_value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return str(value)


def _describe_nodes(
    project: Project, plan: Plan, run: Run, workflow: Workflow, obstacles: list[str]
) -> Report:
    """Return a graph's next nodes and the agent of each node; add problems to *obstacles*."""
    next_nodes = (
        [plan.node]
        if plan.node is not None
        else _call_noting_error(
            obstacles, lambda: [node.step for node in run.next(len(workflow.steps))]
        )
    )
    readiness = _call_noting_error(obstacles, run.readiness)
    if readiness is not None and readiness.kind is not ReadinessKind.READY:
        obstacles.append(readiness.message)
    agents = {}
    optional_fields = find_optional_fields(workflow)
    for step in workflow.steps:
        build = partial(_choose_executor, project, step, optional_fields.get(step.name, ()))
        choice = _call_noting_error(
            obstacles, build, lambda error: add_location(error, project, run, workflow, plan.source)
        )
        if choice is not None:
            agents[step.name] = choice[0]
            obstacles += [text for text in agent_problems(choice[1]) if text not in obstacles]
    return {"next": ", ".join(next_nodes or ()) or "nothing", "agents": agents}


def _choose_executor(
    project: Project, step: Step, optional_fields: tuple[str, ...]
) -> tuple[str, Executor]:
    """Return the agent of the graph's *step* and its executor, which must support the step."""
    full_step = with_defaults(step, project.settings.step_defaults)
    supported_step = drop_unsupported_fields(project.agents, full_step, step.name, optional_fields)[
        0
    ]
    return project.agents.choose(supported_step, step.name)


def _find_obstacles(plan: Plan, run: Run, head: Head | None, workflow: Workflow) -> Iterator[str]:
    """Yield the reasons why nothing would start, except problems of the step itself."""
    if head is None:
        return
    try:
        ensure_definition(head, workflow)
        readiness = run.readiness()
    except SequencerError as error:
        yield error.in_one_line
        return
    if readiness is None or readiness.kind is ReadinessKind.COMPLETE:
        yield "the run is complete"
        return
    if readiness.claim is not None:
        if not run.store.liveness(readiness.claim).allows_take_over:
            yield readiness.message
    elif readiness.kind is not ReadinessKind.READY:
        yield readiness.message
    try:
        positions = run.commands.kind.resolve_positions(plan.positions)
    except SequencerError as error:
        yield error.in_one_line
        return
    position = describe(workflow, head.step_index).position
    if positions and position not in positions:
        yield f"the step is at position {position}, which --position does not name"


def _describe_step(
    project: Project, workflow: Workflow, index: int, obstacles: list[str]
) -> Report:
    """Return the facts about the step at *index*; add what it is missing to *obstacles*."""
    settings = project.settings
    step = with_defaults(resolve(workflow, index), settings.step_defaults)
    facts = describe(workflow, index)
    report: Report = {
        "step_index": index,
        "iteration": facts.iteration,
        "step": step.name,
        "position": facts.position,
    }
    if step.description:
        report["description"] = step.description
    agent = _call_noting_error(
        obstacles, lambda: choose_agent(settings, step, facts.position, project.agents.overrides)
    )
    choice = _call_noting_error(obstacles, lambda: project.agents.choose(step, facts.position))
    if agent is not None:
        report["agent"] = choice[0] if choice else agent.name
        report["chosen_by"] = "--rehearse" if project.rehearses else agent.source
    if choice is not None:
        obstacles += agent_problems(choice[1])
    report["prompt"] = _call_noting_error(
        obstacles, lambda: _describe_prompt(project, step, choice and choice[1])
    )
    if settings.router.is_active and not project.rehearses:
        report["router"] = (
            f"{settings.router.mode}: {settings.router.prompt} may choose another prompt"
        )
    budget = {"timeout_s": step.timeout_s, "max_cost_usd": step.max_cost_usd}
    report["budget"] = {key: value for key, value in budget.items() if value is not None}
    return report


def _describe_prompt(project: Project, step: Step, executor: Executor | None) -> str:
    """Return where the step's prompt is, or that there is none; read it as the step would."""
    if step.text is not None:
        return f"the text of step {step.name!r}"
    if executor is not None and not project.prompts.read_for(step, executor):
        return f"none: {step.prompt_name} is missing or empty"
    return str(prompt_path(project.settings.prompts_dir, step.prompt_name))


def _call_noting_error(
    obstacles: list[str],
    function: Callable[[], Found],
    place_error: Callable[[SequencerError], None] = lambda _: None,
) -> Found | None:
    """Return what *function* returns; None: it failed, and its error was added to *obstacles*."""
    try:
        return function()
    except SequencerError as error:
        place_error(error)
        if error.in_one_line not in obstacles:
            obstacles.append(error.in_one_line)
        return None
