"""`run` and its options, most of which `tick` has too. `run_work` does the work."""

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

Pairs = tuple[tuple[str, str], ...]


def _parse_pairs(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> Pairs:
    """Return each ``NAME=AGENT`` as a pair. A name may contain ``=``, an agent's name may not."""
    pairs = []
    for value in values:
        name, separator, agent = value.rpartition("=")
        if not separator or not name or not agent:
            raise click.BadParameter(
                f"{value!r} is not {parameter.metavar}", ctx=context, param=parameter
            )
        pairs.append((name, agent))
    return tuple(pairs)


_RUN_OPTIONS = with_options(
    click.argument("flow", metavar="[FLOW]", required=False, shell_complete=complete_flows),
    click.option("--state", multiple=True, metavar="KEY=VALUE", callback=read_state,
                 help="A start value of FLOW's state; KEY=@FILE reads a file; repeatable."),
    click.option("--new", is_flag=True, help="Start another run of FLOW, next to existing ones."),
    click.option("--mode", type=click.Choice(("combined", "sync", "async")),
                 help="combined: this process runs every step. sync: it waits for the turns of its "
                 "positions. async: it runs steps without the run's state."),
    click.option("--detach", is_flag=True,
                 help="Return at once; workers do the steps. For runs on Temporal."),
    click.option("--step-index", type=click.IntRange(0, 2**62), metavar="I",
                 help="Where mode async starts; default 0."),
    click.option("--max-steps", type=click.IntRange(min=1), metavar="N",
                 help="At most N steps in this invocation; default 20, in mode sync 500."),
    click.option("--max-cycles", type=click.IntRange(min=1), metavar="N",
                 help="At most N cycles in this invocation."),
    click.option("--max-wait", type=click.FloatRange(min=0), metavar="S",
                 help="Seconds to wait for a turn; default 0, without limit in mode sync and at a "
                 "flowchart. It always waits for a date, such as the end of a usage limit."),
    click.option("--max-parallel", type=click.IntRange(1, 1000), metavar="N",
                 help="At most N flowchart nodes at the same time; default 4."),
    click.option("--start-at", metavar="STEP",
                 help="Start with the next step that has this name or prompt; skip the steps "
                 "before it. A new flow or team starts at this node."),
)  # fmt: skip
OPTIONS = with_options(
    click.option("--position", "positions", multiple=True, metavar="P",
                 shell_complete=complete_positions,
                 help="Run only the steps at this position, by name or number from 0; repeatable."),
    WORKFLOW(help="The workflow for a new run."),
    REVIEW_EVERY,
    MAX_COST,
    click.option("--step-timeout", type=MONEY, metavar="S",
                 help="Time limit in seconds for a step without timeout_s."),
    AGENT,
    click.option("--agent-step", multiple=True, metavar="STEP=A", callback=_parse_pairs,
                 shell_complete=complete_agents_for_steps,
                 help="The agent for one step; repeatable."),
    click.option("--agent-prompt", multiple=True, metavar="PROMPT=A", callback=_parse_pairs,
                 help="The agent for one prompt; overrides all others; repeatable."),
    click.option("--router/--no-router", default=None,
                 help="Let the router choose prompts, or not."),
    REHEARSE,
    click.option("--dry-run", is_flag=True,
                 help="Show what would run and what blocks it; change nothing."),
)  # fmt: skip


_FIRST_OF_RUN = ("--max-steps", "--max-cost", "--mode", "--position", "--agent", "--dry-run")


@verb("run", has_secrets=True, first=_FIRST_OF_RUN)
@_RUN_OPTIONS
@OPTIONS
@pass_invocation
def run(invocation: Invocation, /, **options: Any) -> int:
    """Run one step after another until a limit, the end, or a failure.

    The first call starts the run. After that the run keeps its workflow and its review
    cadence; 'sequencer adopt' changes them.

    FLOW is a flowchart or a task list: a file, or its name in flows/. It gets a run of that
    name. Nodes run at the same time where the chart allows it, until the flow ends or waits
    for you.

    \b
    Examples:
      sequencer run --max-steps 6
      sequencer run --workflow review_cadence --review-every 3 --max-cost 5
      sequencer run --mode sync --position supervisor      one terminal per position
      sequencer run --agent claude --agent-step reviewer=codex
      sequencer run --mode async --step-index 4 --max-steps 1
      sequencer run --start-at reviewer
      sequencer run flows/review.md --state branch=main
      sequencer run --detach --max-steps 50       on Temporal; workers do the steps
      sequencer run --rehearse --run rehearsal --max-steps 6
      sequencer run --dry-run
    """
    return perform(invocation, **options)


def perform(invocation: Invocation, **options: Any) -> int:
    """Work on the run with the *options* of `run` or `tick`; with dry_run, only show the work."""
    from sequencer.cli import dry_run, run_work  # noqa: PLC0415 - `--help` needs no engine

    project, plan = run_work.prepare_plan(invocation, **options)
    act = dry_run.show if options["dry_run"] else run_work.work
    return act(invocation, project, plan)
