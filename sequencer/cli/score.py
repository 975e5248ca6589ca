"""`score`: how much a request would gain from a team, and whether it would get one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.requests import FILE, LABEL, PROCEDURE, TEXT, request_from
from sequencer.cli.views.text import one_line
from sequencer.errors import UsageRefused

if TYPE_CHECKING:
    from sequencer.workflows.teams.scoring import TeamChoice


@verb("score")
@TEXT
@FILE
@LABEL
@PROCEDURE
@pass_invocation
def score(
    invocation: Invocation,
    text: str | None,
    file: Path | None,
    labels: tuple[str, ...],
    procedure: str | None,
) -> None:
    """Score how much a request would gain from a team, from 0 to 100, and why.

    The kind of request is found as 'sequencer route' finds it, by an agent where one is
    asked; the rest is counted: words, length, lists, paths, labels. Nothing is started.

    \b
    Examples:
      sequencer score "Migrate the frontend and backend to the new API"
      sequencer score --file issue.md --label epic --json
    """
    from sequencer.workflows.teams import scoring  # noqa: PLC0415 - `--help` needs none

    project = invocation.project()
    request = request_from(invocation, project, "score", text=text, file=file, labels=labels)
    route = project.starter.route(request, procedure)
    settings = project.settings
    word = scoring.classification_of(request, route, settings.routing)
    choice = project.starter.choose_team(request, route)
    if choice is None:
        raise UsageRefused("nobody works in teams here")
    if invocation.is_json:
        told = {"classification": word, "procedure": route.procedure, **_told(choice)}
        told |= {"threshold": settings.teams.threshold, "request": request.model_dump(mode="json")}
        invocation.print_json(told)
        return
    invocation.echo(f"score      {choice.score.score} of 100")
    invocation.echo(f"team       {'yes' if choice.uses_team else 'no'}  ({choice.why})")
    invocation.echo(f"size       {_size(choice)}")
    invocation.echo(f"kind       {word or 'unknown'}  ({one_line(route.reason)})")
    invocation.echo(f"procedure  {one_line(route.procedure)}")
    invocation.echo(_table(choice, invocation.room))


def _told(choice: TeamChoice) -> dict[str, Any]:
    return {
        "score": choice.score.score,
        "uses_team": choice.uses_team,
        "why": choice.why,
        "team_size": _size(choice),
        "reasons": [asdict(reason) for reason in choice.score.reasons],
    }


def _size(choice: TeamChoice) -> int:
    """Return the members that the score speaks for, if there may be so many."""
    return min(choice.size, choice.score.team_size)


def _table(choice: TeamChoice, room: int | None) -> str:
    from sequencer.cli.views.text import columns  # noqa: PLC0415 - `--help` needs none

    rows = [
        (f"{reason.points:+d}" if reason.points else "0", one_line(reason.text))
        for reason in choice.score.reasons
    ]
    return columns(("POINTS", "FOR"), rows, right={0}, room=room)
