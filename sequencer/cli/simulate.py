"""`simulate`: what a flowchart would do, on a virtual clock and without an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli import completion
from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.sanitise import one_line
from sequencer.errors import ConfigurationError, SequencerError, UsageRefused

if TYPE_CHECKING:
    from sequencer.resolution.flowcharts.reader import Flow
    from sequencer.resolution.flowcharts.script import Script
    from sequencer.resolution.simulation import Replay

MAX_SCRIPT_BYTES = 4 * 1024 * 1024
INVALID = "invalid"


@verb("simulate")
@click.argument("flow", metavar="FLOW", shell_complete=completion.flows)
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="What the nodes answer, and how long they take.",
)
@pass_invocation
def simulate(invocation: Invocation, flow: str, script: Path | None) -> int:
    """Show what FLOW would do: every start, end, loop and failure, with its time.

    FLOW is a workflow file, or a Mermaid chart alone (.mmd). The script is a JSON object:
    nodes (by id: out, a list of answers, {"error": TEXT} for a failure; ms, how long;
    timeout), entry, onError, retry, maxIterations, timeout. Nodes that it leaves out take
    10 ms, markers none, and choices go the first way that leads forward.

    \b
    Examples:
      sequencer simulate flows/review.md
      sequencer simulate chart.mmd --script answers.json --json | jq .status
    """
    from sequencer.resolution.simulation import simulate as replay  # noqa: PLC0415

    said = _script(script)
    try:
        found = _flow(invocation, flow, said)
    except ConfigurationError as error:
        if not _is_about_the_flow(error):
            raise
        return _invalid(invocation, error)
    for warning in found.warnings:
        invocation.say(f"warning: {warning}")
    said.check(found.graph)
    done = replay(found.workflow, said.parts)
    if invocation.is_json:
        invocation.print_json(_as_json(done))
        return 0
    for line in done.trace:
        invocation.echo(one_line(line))
    invocation.say(f"{done.status} after {len(done.trace)} events")
    return 0


def _script(path: Path | None) -> Script:
    from sequencer.resolution.flowcharts.script import read_script  # noqa: PLC0415

    if path is None:
        return read_script({}, "--script")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
        if len(data) > MAX_SCRIPT_BYTES:
            raise UsageRefused(f"has more than {MAX_SCRIPT_BYTES} bytes", where=str(path))
        content = json.loads(data)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"is no JSON: {error}", where=str(path)) from None
    return read_script(content, str(path))


def _flow(invocation: Invocation, asked: str, said: Script) -> Flow:
    from sequencer.assembly.flows import path_of  # noqa: PLC0415
    from sequencer.resolution.flowcharts.reader import load_flow  # noqa: PLC0415

    # A file that is there needs no project around it.
    path = Path(asked)
    if not path.is_file():
        path = path_of(invocation.project(), asked)
    return load_flow(path, overrides=said.overrides)


def _is_about_the_flow(error: SequencerError) -> bool:
    from sequencer.resolution.flowcharts.problems import FlowErrors, FlowProblem  # noqa: PLC0415

    return isinstance(error, (FlowErrors, FlowProblem))


def _invalid(invocation: Invocation, error: ConfigurationError) -> int:
    from sequencer.documents.problems import ConfigurationErrors  # noqa: PLC0415

    several = error.errors if isinstance(error, ConfigurationErrors) else (error,)
    trace = [f"load error: {problem.message}" for problem in several]
    if not invocation.is_json:
        raise error
    found = {"status": INVALID, "trace": trace, "state": {}, "back": []}
    invocation.print_json({**found, "problems": [str(problem) for problem in several]})
    return error.exit_code


def _as_json(done: Replay) -> dict[str, Any]:
    return {
        "status": done.status,
        "trace": list(done.trace),
        "state": done.state,
        "back": list(done.back),
        "iterations": done.iterations,
    }
