"""From a request to the tasks of a team, where it is one that a team works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sequencer.errors import UsageRefused
from sequencer.model.request import Request, Route
from sequencer.model.team import Role
from sequencer.model.workflow import Workflow
from sequencer.workflows.requests.options import RoutingSettings
from sequencer.workflows.teams.graphs import workflow_of
from sequencer.workflows.teams.lists import SHARED, builtin_tasks
from sequencer.workflows.teams.options import TeamOptions
from sequencer.workflows.teams.scoring import TeamChoice, classification_of, decide, score_request

SUFFIX = "-team"
"""Behind a procedure's name: the workflow in which a team does what the procedure does."""


@dataclass(frozen=True, slots=True)
class WantedTeam:
    """What a person said about the team."""

    asked: bool | None = None
    """``--team``, ``--no-team``, or neither."""
    size: int | None = None
    """``--team-size``."""


@dataclass(frozen=True, slots=True)
class TeamStarter:
    """Decides whether a team works on a request, and makes its graph."""

    options: TeamOptions
    roles: Mapping[str, Role]
    routing: RoutingSettings

    def choose(
        self, request: Request, chosen: Route, wanted: WantedTeam, *, is_builtin: bool
    ) -> TeamChoice:
        """Return whether *request*, which goes to the procedure of *chosen*, goes to a team.

        A procedure that the project has changed, so that it is not *is_builtin*, has steps
        that no team's tasks know of; a team works on it only if a person says so.

        Raises:
            UsageRefused: a person asked for one, and there is none for the procedure.
        """
        why = None
        by_size = wanted.asked is None and wanted.size is not None
        if chosen.procedure not in SHARED:
            why = f"procedure {chosen.procedure!r} can't be shared out among a team"
            if wanted.asked or by_size:
                others = "others are workflows with 'tasks'"
                hint = f"these can: {', '.join(SHARED)}; {others}"
                where = "--team-size" if by_size else "--team"
                raise UsageRefused(why, where=where, hint=hint)
        asked = True if by_size else wanted.asked
        if why is None and asked is None and not is_builtin:
            why = f"the project has steps of its own for procedure {chosen.procedure!r}"
        found = score_request(request, chosen, self.routing, self.options)
        kind = classification_of(request, chosen, self.routing)
        choice = decide(found, self.options, kind, asked)
        if choice.uses_team and why is not None:
            return replace(choice, uses_team=False, why=why)
        if by_size:
            choice = replace(choice, why="--team-size was given")
        return choice if wanted.size is None else replace(choice, size=wanted.size)

    def workflow(self, procedure: str, size: int) -> Workflow:
        """Return the graph of the tasks in which a team of *size* does what *procedure* does.

        Raises:
            ConfigurationError: these are more tasks than a run may have.
        """
        return workflow_of(
            procedure + SUFFIX,
            builtin_tasks(procedure, size),
            self.roles,
            size=size,
            max_tasks=self.options.max_tasks,
            # Of a built-in list nothing else can be wrong.
            locate=lambda _: "teams.max_tasks",
        )


def told(choice: TeamChoice) -> dict[str, Any]:
    """Return *choice* as it stands in the journal and in ``definition.json``."""
    return {
        "uses_team": choice.uses_team,
        "why": choice.why,
        "score": choice.score.score,
        "size": choice.size,
        "reasons": [f"{one.points:+d} {one.text}" for one in choice.score.reasons],
    }
