"""`run` and `tick`: their options; `run_work` does what they say, and `dry_run` shows it."""

from __future__ import annotations

from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import (
    AGENT,
    MAX_COST,
    MONEY,
    REHEARSE,
    REVIEW_EVERY,
    WORKFLOW,
    complete_agents_for_steps,
    complete_flows,
    complete_positions,
    pass_invocation,
    read_state,
    verb,
    with_options,
)
from sequencer.cli.unattended import OPTION

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


_RUN_OPTIONS = with_options(
    click.argument("flow", metavar="[FLOW]", required=False, shell_complete=complete_flows),
    click.option("--state", multiple=True, metavar="KEY=VALUE", callback=read_state,
                 help="What FLOW's state begins with; KEY=@FILE takes a file's text; repeatable."),
    click.option("--new", is_flag=True, help="Begin another run of FLOW beside the others."),
    click.option("--mode", type=click.Choice(("combined", "sync", "async")),
                 help="combined: this process runs every step. sync: it waits for its positions' "
                 "turns. async: beside the run, without its state."),
    click.option("--detach", is_flag=True,
                 help="Return at once; workers make the steps. For runs on Temporal."),
    click.option("--step-index", type=click.IntRange(0, 2**62), metavar="I",
                 help="Where mode async begins; default 0."),
    click.option("--start-at", metavar="STEP",
                 help="Start with the next step of this name or prompt; those before it are "
                 "skipped. A flow or a team that has not begun starts at this node."),
)  # fmt: skip
_OPTIONS = with_options(
    click.option("--position", "positions", multiple=True, metavar="P",
                 shell_complete=complete_positions,
                 help="Run only the steps at this position, by name or place from 0; repeatable."),
    WORKFLOW(help="The workflow of a run that begins."),
    REVIEW_EVERY,
    click.option("--max-steps", type=click.IntRange(min=1), metavar="N",
                 help="Steps of this invocation; default 20, in mode sync 500."),
    click.option("--max-cycles", type=click.IntRange(min=1), metavar="N",
                 help="Cycles of this invocation."),
    MAX_COST,
    click.option("--max-wait", type=click.FloatRange(min=0), metavar="S",
                 help="Seconds to wait for a turn; default 0, in mode sync without limit."),
    click.option("--step-timeout", type=MONEY, metavar="S",
                 help="Seconds for a step that has no timeout_s of its own."),
    AGENT,
    click.option("--agent-step", multiple=True, metavar="STEP=A", callback=_pairs,
                 shell_complete=complete_agents_for_steps,
                 help="The agent of one step; repeatable."),
    click.option("--agent-prompt", multiple=True, metavar="PROMPT=A", callback=_pairs,
                 help="The agent of one prompt, before all others; repeatable."),
    click.option("--router/--no-router", default=None,
                 help="Let the router choose prompts, or not."),
    click.option("--max-parallel", type=click.IntRange(1, 1000), metavar="N",
                 help="Nodes of a flowchart at once in this process; default 4."),
    REHEARSE,
    click.option("--dry-run", is_flag=True,
                 help="Show what would run and what stands in the way; change nothing."),
)  # fmt: skip


@verb("run", first=("--max-steps", "--max-cost", "--mode", "--position", "--agent", "--dry-run"))
@_RUN_OPTIONS
@_OPTIONS
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
      sequencer run --start-at reviewer
      sequencer run flows/review.md --state branch=main
      sequencer run --detach --max-steps 50       on Temporal; the workers do it
      sequencer run --rehearse --run rehearsal --max-steps 6
      sequencer run --dry-run
    """
    return _perform(invocation, **options)


_LOG = click.option(
    OPTION,
    # `unattended.log_of` has taken it from the arguments.
    expose_value=False,
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="For timers: keep all that is said in PATH, with the time; print only what has changed "
    "for a person.",
)


@verb("tick", first=("--position", "--max-steps", "--max-cost", "--agent", "--log"))
@_OPTIONS
@_LOG
@pass_invocation
def tick(invocation: Invocation, /, **options: Any) -> int:
    """Run the step that is due, or none, and never wait: for cron and systemd timers.

    Exit code 0 also means that nothing was due; 75 that somebody else runs the step.
    'sequencer schedule install' installs a timer that calls this.

    \b
    Examples:
      sequencer tick
      sequencer tick --quiet --max-cost 2
      sequencer --run nightly tick --json
    """
    return _perform(invocation, is_tick=True, **options)


def _perform(invocation: Invocation, **options: Any) -> int:
    from sequencer.cli import dry_run, run_work  # noqa: PLC0415 - `--help` needs no engine

    project, planned = run_work.planned(invocation, **options)
    act = dry_run.show if options["dry_run"] else run_work.work
    return act(invocation, project, planned)
