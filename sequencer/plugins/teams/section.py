"""The section `teams` of orchestration.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sequencer.model.step import Step
from sequencer.plugins.teams.options import TeamOptions
from sequencer.project.sections import ConfigSection, LocatedError, SectionSteps
from sequencer.project.setting_checks import Check
from sequencer.project.settings import Settings


def get_team_options(settings: Settings) -> TeamOptions:
    """Return the section `teams` of *settings*."""
    options: TeamOptions = settings.section("teams")
    return options


def _problems(value: TeamOptions, check: Check) -> Iterator[LocatedError]:
    for name, role in value.roles.items():
        step = Step.model_validate({"name": name, **role.step})
        yield from check.check_step(step, ("teams", "roles", name))
    if value.fallback_agent is not None:
        yield from check.check_agent(value.fallback_agent, ("teams", "fallback_agent"))
    for name in value.score.procedures:
        yield from check.check_procedure(name, ("teams", "score", "procedures", name))


def _every_role(value: TeamOptions) -> Mapping[str, tuple[Step, Any]]:
    return {
        name: (Step.model_validate({"name": name, **role.step}), role)
        for name, role in value.every_role.items()
    }


SECTION = ConfigSection(TeamOptions, TeamOptions, _problems, SectionSteps("roles", _every_role))
