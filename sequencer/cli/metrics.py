"""`metrics`: what runs have done and used, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import NewFile, pass_invocation, save, verb
from sequencer.errors import SequencerError

if TYPE_CHECKING:
    from sequencer.cli.metrics_text import Seen
    from sequencer.engine.run import Run
    from sequencer.history.totals import Maker
    from sequencer.model.workflow import Workflow
    from sequencer.project import Project

FILE_MODE = 0o644
"""The exporter is another user."""


@verb("metrics", has_json=False)
@click.option("--all-runs", is_flag=True, help="Every run of the project, not only one.")
@click.option(
    "--format",
    "text_format",
    type=click.Choice(["openmetrics", "prometheus"]),
    default="openmetrics",
    show_default=True,
    help="How it is written; a node exporter reads prometheus.",
)
@click.option(
    "--output",
    type=NewFile(),
    metavar="FILE",
    help="Write FILE, whole or not at all, instead of printing.",
)
@pass_invocation
def metrics(
    invocation: Invocation, *, all_runs: bool, text_format: str, output: Path | None
) -> None:
    """Print what a run has done and used as metrics: steps, failures, time, tokens, cost.

    \b
    Examples:
      sequencer metrics
      sequencer metrics --all-runs --format prometheus --output /srv/s.prom
    """
    from sequencer.cli.metrics_text import metrics_text  # noqa: PLC0415 - `--help` needs none

    if all_runs and invocation.run_name is not None:
        raise click.UsageError("--all-runs and --run exclude each other")
    seen, unreadable = _seen(invocation, all_runs=all_runs)
    data = metrics_text(seen, unreadable, text_format)
    if output is None:
        invocation.echo(data.decode().removesuffix("\n"), is_verbatim=True)
        return
    save(output, data, is_ours=_is_metrics, what="metrics", mode=FILE_MODE)
    invocation.say(f"{output} was written")


def _seen(invocation: Invocation, *, all_runs: bool) -> tuple[list[Seen], list[str | None]]:
    """Return the runs that were asked for and have begun, and those that can't be read.

    Raises:
        SequencerError: the one run that was asked for can't be read.
    """
    project = invocation.project()
    if not all_runs:
        one = _look(invocation, project, invocation.run())
        if one is None:
            invocation.say("nothing has happened yet: the run was never begun")
        return [one] if one is not None else [], []
    seen: list[Seen] = []
    unreadable: list[str | None] = []
    for name in (None, *project.run_names()):
        try:
            one = _look(invocation, project, project.run(name))
        except SequencerError as error:
            # One that is damaged must not hide the others.
            invocation.say(f"warning: run {name or '(default)'}: {error.message}")
            unreadable.append(name)
            continue
        if one is not None:
            seen.append(one)
    return seen, unreadable


def _look(invocation: Invocation, project: Project, run: Run) -> Seen | None:
    from sequencer.cli.metrics_text import Seen  # noqa: PLC0415 - `--help` needs none
    from sequencer.history.totals import caps_of, totals_of  # noqa: PLC0415 - `--help` needs none

    head = run.head
    if head is None:
        return None
    workflow, graph, spent = None, None, {}
    try:
        workflow = run.workflow
        if workflow.graph is not None:
            marking = run.flow.marking(head)[1]
            graph, spent = marking.graph, marking.team.spent
    except SequencerError as error:
        invocation.say(f"warning: roles and models are not known: {error.message}")
    tasks = () if graph is None else graph.nodes
    return Seen(
        run.name,
        head,
        totals_of(run.history()),
        tuple(caps_of(run.limits, head.usage, graph, spent, project.settings.teams.rules)),
        {node.id: node.task.role for node in tasks if node.task and node.task.role},
        _models(project, workflow),
    )


def _models(project: Project, workflow: Workflow | None) -> Callable[[Maker], str]:
    """Return what names a model: the attempt's own, else its step's, else its agent's."""
    steps = {} if workflow is None else workflow.steps_by_name
    agents = project.settings.agents

    def model_of(maker: Maker) -> str:
        step, agent = steps.get(maker.step), agents.get(maker.agent)
        options: Mapping[str, object] = {} if agent is None else agent.options
        return maker.model or (step and step.model) or str(options.get("model") or "")

    return model_of


def _is_metrics(beginning: bytes) -> bool:
    return not beginning.strip() or beginning.startswith(b"# ")
