"""`run` and `tick`: work on the run, and say in the end what was done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import (
    complete_agents,
    complete_agents_for_steps,
    complete_flows,
    complete_positions,
    complete_workflows,
    hide_in,
    pass_invocation,
    read_state,
    verb,
)
from sequencer.cli.unattended import OPTION
from sequencer.errors import UnknownName, UsageRefused

if TYPE_CHECKING:
    from sequencer.assembly.agents import AgentOverrides
    from sequencer.engine.loop import Mode
    from sequencer.model.limits import InvocationLimits
    from sequencer.model.net.source import FlowSource
    from sequencer.project import Project

SYNC_STEPS = 500
"""Of a process in mode sync that nobody gave a number: it waits for its turns over days, and an
agent that has nothing to do any more must not be asked forever."""
Pairs = tuple[tuple[str, str], ...]


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Pairs:
    """Return each ``NAME=AGENT``; a name may hold ``=``, an agent's may not."""
    found = []
    for value in values:
        name, separator, agent = value.rpartition("=")
        if not separator or not name or not agent:
            raise click.BadParameter(
                f"{value!r} is not {parameter.metavar}", ctx=context, param=parameter
            )
        found.append((name, agent))
    return tuple(found)


_MONEY = click.FloatRange(min=0, min_open=True)
_MODE_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--mode",
        type=click.Choice(("combined", "sync", "async")),
        help="combined: this process runs every step. sync: it waits for its positions' turns. "
        "async: beside the run, without its state.",
    ),
    click.option(
        "--step-index",
        type=click.IntRange(0, 2**62),
        metavar="I",
        help="Where mode async begins; default 0.",
    ),
    click.option(
        "--start-prompt",
        metavar="PROMPT",
        help="Start with the next step that has this prompt; those before it are skipped.",
    ),
)
_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--position",
        "positions",
        multiple=True,
        metavar="P",
        shell_complete=complete_positions,
        help="Run only the steps at this position, by name or place from 0; repeatable.",
    ),
    click.option("--workflow", metavar="NAME", shell_complete=complete_workflows,
                 help="The workflow of a run that begins."),
    click.option("--review-every", type=click.IntRange(-(2**31), 2**31 - 1), metavar="N",
                 help="A review every N cycles; 0 is never."),
    click.option("--max-steps", type=click.IntRange(min=1), metavar="N",
                 help="Steps of this invocation; default 20, in mode sync 500."),
    click.option("--max-cycles", type=click.IntRange(min=1), metavar="N",
                 help="Cycles of this invocation."),
    click.option("--max-cost", type=_MONEY, metavar="USD", help="Cost of this invocation."),
    click.option("--max-wait", type=click.FloatRange(min=0), metavar="S",
                 help="Seconds to wait for a turn; default 0, in mode sync without limit."),
    click.option("--step-timeout", type=_MONEY, metavar="S",
                 help="Seconds for a step that has no timeout_s of its own."),
    click.option("--agent", metavar="A", shell_complete=complete_agents,
                 help="The agent of steps that name none."),
    click.option("--agent-step", multiple=True, metavar="STEP=A", callback=_pairs,
                 shell_complete=complete_agents_for_steps,
                 help="The agent of one step; repeatable."),
    click.option("--agent-prompt", multiple=True, metavar="PROMPT=A", callback=_pairs,
                 help="The agent of one prompt, before all others; repeatable."),
    click.option("--router/--no-router", default=None,
                 help="Let the router choose prompts, or not."),
    click.option("--max-parallel", type=click.IntRange(1, 1000), metavar="N",
                 help="Nodes of a flowchart at once in this process; default 4."),
    click.option("--rehearse", is_flag=True,
                 help="Let no agent run, whatever names one: each step says what it would ask, "
                 "and counts as done."),
    click.option("--dry-run", is_flag=True,
                 help="Show what would run and what stands in the way; change nothing."),
)  # fmt: skip


def _with(options: tuple[Callable[..., Any], ...]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the options of `run` or `tick` say."""

    positions: tuple[str, ...]
    workflow: str | None
    review_every: int | None
    max_steps: int | None
    max_cycles: int | None
    max_cost: float | None
    max_wait: float | None
    step_timeout: float | None
    agent: str | None
    agent_step: Pairs
    agent_prompt: Pairs
    router: bool | None
    rehearse: bool
    dry_run: bool
    max_parallel: int | None
    flow: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    new: bool = False
    mode: str | None = None
    step_index: int | None = None
    start_prompt: str | None = None
    is_tick: bool = False

    def open(self, invocation: Invocation) -> Project:
        """Return the project with the options laid over its settings.

        Raises:
            ConfigurationError: they don't fit to it.
        """
        from sequencer.assembly.agents import AgentOverrides  # noqa: PLC0415 - see `run`
        from sequencer.settings.sources import Given  # noqa: PLC0415

        values: dict[tuple[str | int, ...], tuple[str, object]] = {
            ("workflow", "name"): ("--workflow", self.workflow),
            ("workflow", "review_every_n"): ("--review-every", self.review_every),
            ("agent", "default"): ("--agent", self.agent),
            ("router", "enabled"): ("--router" if self.router else "--no-router", self.router),
            ("run", "mode"): ("--mode", self.mode),
            ("run", "max_steps"): ("--max-steps", self.max_steps),
            ("run", "max_cycles"): ("--max-cycles", self.max_cycles),
            ("run", "max_cost_usd"): ("--max-cost", self.max_cost),
            ("run", "max_wait_s"): ("--max-wait", self.max_wait),
            ("run", "step_timeout_s"): ("--step-timeout", self.step_timeout),
            ("run", "max_parallel"): ("--max-parallel", self.max_parallel),
        }
        flags = {key: Given(*given) for key, given in values.items() if given[1] is not None}
        overrides = AgentOverrides(dict(self.agent_prompt), dict(self.agent_step))
        project = invocation.project(flags, overrides, rehearses=self.rehearse)
        if self.router and project.settings.router.prompt is None:
            raise UsageRefused(
                "there is no router to ask", where="--router", hint="router.prompt names its prompt"
            )
        _ensure_known_agents(project, overrides)
        return project

    def chosen_mode(self, project: Project) -> Mode:
        """Return the mode to work in.

        Raises:
            UsageRefused: an option was given that has no meaning in it.
        """
        from sequencer.engine.loop import Mode  # noqa: PLC0415 - see `run`

        if self.is_tick:
            if self.max_wait:
                raise UsageRefused(
                    "tick never waits", where="--max-wait",
                    hint=f"'sequencer run --max-steps 1 --max-wait {self.max_wait:g}' does",
                )  # fmt: skip
            return Mode.TICK
        mode = Mode(project.settings.run.mode)
        is_async = mode is Mode.ASYNC
        if self.step_index is not None and not is_async:
            raise UsageRefused(
                f"mode {mode} goes on where the run is", where="--step-index",
                hint="it is for --mode async; 'sequencer rewind' moves the run",
            )  # fmt: skip
        for option, value in (("--position", self.positions), ("--max-wait", self.max_wait)):
            if is_async and value:
                raise UsageRefused("mode async has no turns to take or wait for", where=option)
        return mode

    def limits(self, project: Project, mode: Mode) -> InvocationLimits:
        """Return the limits of this invocation."""
        from sequencer.model.limits import InvocationLimits  # noqa: PLC0415 - see `run`

        defaults = project.settings.run
        is_default = project.settings.sources["run", "max_steps"].kind == "default"
        return InvocationLimits(
            max_steps=SYNC_STEPS if is_default and mode == "sync" else defaults.max_steps,
            max_cycles=defaults.max_cycles,
            max_cost_usd=defaults.max_cost_usd,
            max_wait_s=0 if self.is_tick else defaults.max_wait_s,
            step_timeout_s=defaults.step_timeout_s,
        )


def _ensure_known_agents(project: Project, overrides: AgentOverrides) -> None:
    """Return if every agent of *overrides* is known, also those of steps that come late."""
    from sequencer.assembly.agents import known_agents  # noqa: PLC0415 - see `run`

    known = known_agents(project.settings)
    for option, table in (
        ("--agent-prompt", overrides.by_prompt),
        ("--agent-step", overrides.by_step),
    ):
        for name, agent in table.items():
            if agent not in known:
                raise UnknownName("agent", agent, known, where=f"{option} {name}={agent}")


_FLOW_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("flow", metavar="[FLOW]", required=False, shell_complete=complete_flows),
    click.option(
        "--state",
        multiple=True,
        metavar="KEY=VALUE",
        callback=read_state,
        help="What FLOW's state begins with; KEY=@FILE takes a file's text; repeatable.",
    ),
    click.option("--new", is_flag=True, help="Begin another run of FLOW beside the others."),
)


@verb("run")
@_with((*_FLOW_OPTIONS, *_MODE_OPTIONS, *_OPTIONS))
@pass_invocation
def run(invocation: Invocation, /, **options: Any) -> int:
    """Run steps, one after the other, until a limit, an end or a failure.

    A run that was never begun begins. What the run was begun with stays: another workflow
    or cadence is refused until 'sequencer adopt'.

    FLOW is a flowchart or a list of tasks: a file, or its name in flows/. It runs in a run of
    that name, several nodes at once where it says so, until the flow ends or waits for a person.

    \b
    Examples:
      sequencer run --max-steps 6
      sequencer run --workflow review_cadence --review-every 3 --max-cost 5
      sequencer run --mode sync --position supervisor      one terminal a position
      sequencer run --agent claude --agent-step reviewer=codex
      sequencer run --mode async --step-index 4 --max-steps 1
      sequencer run flows/review.md --state branch=main
      sequencer run --rehearse --run rehearsal --max-steps 6
      sequencer run --dry-run
    """
    return _work(invocation, Wish(**options))


_LOG = click.option(
    OPTION,
    # `unattended.log_of` has taken it from the arguments.
    expose_value=False,
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="For timers: keep all that is said in PATH, with the time; print only what has changed "
    "for a person.",
)


@verb("tick")
@_with((*_OPTIONS, _LOG))
@pass_invocation
def tick(invocation: Invocation, /, **options: Any) -> int:
    """Run the step that is due, or none, and never wait: for cron and systemd timers.

    Exit code 0 also means that nothing was due; 75 that somebody else runs the step.
    'sequencer crontab' and 'sequencer systemd' print entries that call this.

    \b
    Examples:
      sequencer tick
      sequencer tick --quiet --max-cost 2
      sequencer --run nightly tick --json
    """
    return _work(invocation, Wish(**options, is_tick=True))


def _chosen_flow(invocation: Invocation, project: Project, wish: Wish) -> FlowSource | None:
    """Return what a run of the flowchart that was asked for begins with.

    The invocation is about that run from now on.
    """
    if wish.flow is None:
        for option, value in (("--state", wish.state), ("--new", wish.new)):
            if value:
                raise UsageRefused("is for a flowchart", where=option, hint="name it: run FLOW")
        return None
    if wish.workflow is not None:
        raise UsageRefused(
            f"{wish.flow!r} is the workflow already", where="--workflow", hint="leave one out"
        )
    from sequencer.assembly.flows import run_of  # noqa: PLC0415 - see `_work`

    state = _without_secrets(invocation, project, wish.state)
    name, source = run_of(project, wish.flow, state, invocation.run_name, anew=wish.new)
    invocation.run_name = name
    return source


def _without_secrets(
    invocation: Invocation, project: Project, state: dict[str, Any]
) -> dict[str, Any]:
    """Return *state* as it may be kept with the run, and say of which keys a secret was hidden."""
    safe = {key: hide_in(project.redaction, value) for key, value in state.items()}
    invocation.notices(
        f"--state {key}: a secret is kept as [secret]"
        for key, value in state.items()
        if safe[key] != value
    )
    return safe


def _work(invocation: Invocation, wish: Wish) -> int:
    # The engine is imported here, because `--help` and completion need none of it.
    from sequencer.cli import dry_run, run_work  # noqa: PLC0415

    project = wish.open(invocation)
    if not wish.dry_run:
        # A timer has nobody to ask, also where a person has typed it.
        project.ensure_may_act(may_ask=not wish.is_tick)
    source = _chosen_flow(invocation, project, wish)
    mode = wish.chosen_mode(project)
    limits = wish.limits(project, mode)
    plan = run_work.Plan(mode, limits, wish.positions, wish.step_index, source)
    if wish.start_prompt is not None:
        plan = run_work.started_at(invocation, project, plan, wish.start_prompt, wish.dry_run)
    if wish.dry_run:
        return dry_run.show(invocation, project, plan)
    return run_work.work(invocation, project, plan)
