"""What a project brings to a team: its rules, its roles, and where its tasks work."""

from __future__ import annotations

from sequencer.engine.perform import OneWorkplace, Team
from sequencer.plugins.teams.growth import TeamGrower
from sequencer.project.project import Project
from sequencer.project.worktrees import worktrees


def team_of(project: Project, run: str | None, agent: str | None = None) -> Team:
    """Return what the team of the run called *run* works with.

    *agent* performs tasks that are added and name none.
    """
    settings = project.settings
    rules = settings.teams.rules
    grower = TeamGrower(
        settings.registry.roles,
        rules.max_tasks,
        agent,
        redact=project.redaction.hide_text,
        has_fallback=rules.has_fallback,
    )
    if project.rehearses:
        # Nothing is written, and a work tree would run what the project's git is set to.
        return Team(rules, grower, OneWorkplace(settings.project_dir))
    return Team(rules, grower, worktrees().workplaces_of(project, run))
