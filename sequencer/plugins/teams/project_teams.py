"""Where the agents of a run work, and what a project brings to a team's: its rules and roles."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sequencer.engine.perform import OneWorkplace, Team
from sequencer.engine.tree_state import UnmergedWork
from sequencer.errors import SequencerError
from sequencer.plugins.git.code.carry import folders_of
from sequencer.plugins.git.code.gathering import TaskTrees
from sequencer.plugins.git.code.places import GitWorkplaces
from sequencer.plugins.git.code.run_worktree import RunWorktree
from sequencer.plugins.git.code.set_aside import forget
from sequencer.plugins.git.code.unmerged import Unmerged
from sequencer.plugins.git.process import Git
from sequencer.plugins.teams.growth import TeamGrower
from sequencer.project.runs import state_path_of
from sequencer.project.trusting import ensure_unchanged

if TYPE_CHECKING:
    from sequencer.project.project import Project


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
    return Team(rules, grower, workplaces_of(project, run))


def run_place_of(project: Project, run: str | None, tell: Callable[[str], None]) -> RunWorktree:
    """Return the worktree in which all steps of the run called *run* work; *tell* hears of it."""
    settings, trusted = project.settings, project.trust.files_of("setup")
    folder = settings.project_dir

    def vet(cwd: Path) -> None:
        for path, what in trusted.items():
            ensure_unchanged(cwd / os.path.relpath(path, os.path.realpath(folder)), what, "setup")

    places, limit = workplaces_of(project, run), settings.setup_timeout_s
    return RunWorktree(places, settings.setup, limit, vet, tell)


def unmerged_in(project: Project) -> tuple[UnmergedWork, ...]:
    """Return what the runs of *project* have done that is merged nowhere; git only looks."""
    settings = project.settings
    git, hide = Git(settings.project_dir), project.redaction
    names = (None, *project.run_names())
    trees = {
        name: TaskTrees(folders_of(settings, state_path_of(settings, name)), name, git, hide)
        for name in names
    }

    def is_under_way(run: str | None, run_id: str) -> bool:
        try:
            head = project.run(run).head
        except SequencerError:
            return True  # nobody knows, and others say what is wrong with it
        return head is not None and head.run_id == run_id and head.status != "complete"

    return tuple(one.told() for one in Unmerged(git, trees, is_under_way).found())


def forget_attempts(project: Project, run: str | None) -> None:
    """Remove the refs of the attempts of *run*; where git can't, they stay."""
    forget(Git(project.settings.project_dir), run)


def workplaces_of(project: Project, run: str | None) -> GitWorkplaces:
    """Return the work trees of the run called *run*."""
    settings = project.settings
    return GitWorkplaces(
        folders_of(settings, state_path_of(settings, run)),
        run,
        git=Git(settings.project_dir, allowed=project.allowed),
        redaction=project.redaction,
        fails_on_write=settings.teams.rules.on_write == "fail",
    )
