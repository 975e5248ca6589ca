"""What a project brings to a team's run: its rules, its roles, and where the tasks work."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sequencer.assembly.stores import state_path_of
from sequencer.engine.flow.team import Team
from sequencer.engine.flow.workplaces import Left, OneWorkplace
from sequencer.git import places as workplace
from sequencer.git.carry import folders_of
from sequencer.git.places import Workplaces
from sequencer.model.team import TaskTraits
from sequencer.workflows.teams.growth import TeamGrower

if TYPE_CHECKING:
    from sequencer.assembly.project import Project


def team_of(project: Project, run: str | None, agent: str | None = None) -> Team:
    """Return what the team of the run called *run* works with.

    *agent* performs tasks that are added and name none.
    """
    settings = project.settings
    rules = settings.teams.rules
    grower = TeamGrower(settings.registry.roles, rules.max_tasks, agent)
    if project.rehearses:
        # Nothing is written, and a work tree would run what the project's git is set to.
        return Team(rules, grower, OneWorkplace(settings.project_dir))
    return Team(rules, grower, Places(workplaces_of(project, run), rules.on_write))


def workplaces_of(project: Project, run: str | None) -> Workplaces:
    """Return the work trees of the run called *run*."""
    settings = project.settings
    folders = folders_of(settings, state_path_of(settings, run))
    return Workplaces(folders, run, redaction=project.redaction, allowed=project.allowed)


@dataclass(frozen=True, slots=True)
class Places:
    """The work trees of one run, for the engine."""

    trees: Workplaces
    on_write: Literal["warn", "fail"]

    def open(
        self,
        task: str,
        token: int,
        *,
        run_id: str,
        subject: str,
        traits: TaskTraits,
        is_first: bool,
    ) -> _Place:
        """See `engine.flow.workplaces.Workplaces`."""
        made = self.trees.open(
            task,
            token,
            run_id=run_id,
            writes=traits.writes,
            worktree=traits.worktree,
            subject=subject,
        )
        notices = made.notices
        if not is_first and traits.worktree and self.trees.merged(task, run_id):
            # Its process ended between the merge and the record of it.
            notices += (f"the work of an earlier attempt at {task} is in the checkout already",)
        return _Place(made, self.on_write, notices)

    def clean(self, live: Collection[int]) -> tuple[str, ...]:
        """See `engine.flow.workplaces.Workplaces`."""
        return self.trees.clean(live)


@dataclass(frozen=True, slots=True)
class _Place:
    made: workplace.OwnPlace | workplace.SharedPlace
    on_write: Literal["warn", "fail"]
    notices: tuple[str, ...]

    @property
    def cwd(self) -> Path:
        return self.made.cwd

    def close(self, *, is_accepted: bool, wait_for_turn: Callable[[], None]) -> Left:
        left = self.made.close(is_accepted, wait_for_turn)
        error, notices = left.error, list(left.notices)
        if error is not None and left.hint is not None:
            error = f"{error}; {left.hint}"
        if left.written:
            told = f"a task that only reads has changed files: {', '.join(left.written)}"
            if left.writers:
                told += f" (or {', '.join(left.writers)} did, at the same time)"
            if self.on_write == "fail" and not left.writers:
                error = error or f"{told} (teams.on_write: fail)"
            notices.append(told)
        kept = {"merged": left.commit, "branch": left.branch}
        told_parts = tuple((name, value) for name, value in kept.items() if value is not None)
        if left.folder is not None:
            told_parts += (("worktree", str(left.folder)),)
        return Left(error, tuple(notices), told_parts)
