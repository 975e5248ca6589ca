"""The work trees of a project's runs, in git: what `project.worktrees` asks for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sequencer.engine.tree_state import UnmergedWork
from sequencer.engine.workspace import Workspace
from sequencer.errors import SequencerError, WorkTreeRefused
from sequencer.plugins.git.code.checkout import Checkout
from sequencer.plugins.git.code.gathering import TaskTrees
from sequencer.plugins.git.code.run_worktree import RunWorktree
from sequencer.plugins.git.code.set_aside import forget
from sequencer.plugins.git.code.task_folders import TaskFolders
from sequencer.plugins.git.code.task_worktrees import TaskWorktrees
from sequencer.plugins.git.code.unmerged import Unmerged
from sequencer.plugins.git.code.workspace import folders_of
from sequencer.plugins.git.process import Git
from sequencer.project.diagnostics import Area, Diagnostic, Level, of_error, place_of
from sequencer.project.project import Project
from sequencer.project.runs import state_path_of
from sequencer.project.schema import NONE
from sequencer.project.trusting import ensure_unchanged
from sequencer.workflows.finding import GraphFile


def run_worktree(
    project: Project, run: str | None, outer: Workspace, tell: Callable[[str], None]
) -> RunWorktree:
    """Return the worktree in which all steps of the run called *run* work; *tell* gets its news."""
    settings, trusted = project.settings, project.trust.files_of("setup")
    folder = settings.project_dir

    def vet(cwd: Path) -> None:
        for path, what in trusted.items():
            ensure_unchanged(cwd / os.path.relpath(path, os.path.realpath(folder)), what, "setup")

    places, limit = _task_places(project, run), settings.setup_timeout_s
    return RunWorktree(outer, places, settings.setup, limit, vet=vet, tell=tell)


def unmerged_in(project: Project) -> tuple[UnmergedWork, ...]:
    """Return what the runs of *project* have done that is merged nowhere; git only looks."""
    settings = project.settings
    git, hide = Git(settings.project_dir), project.redaction

    def looked_at(name: str | None) -> Checkout:
        return Checkout(folders_of(settings, state_path_of(settings, name)), git)

    names = (None, *project.run_names())
    trees = {name: TaskTrees(looked_at(name), name, hide) for name in names}

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


def task_worktrees(
    project: Project, run: str | None, outer: Workspace, *, fails_on_write: bool
) -> TaskWorktrees:
    """Return the worktrees for the tasks of the run called *run*; other steps work in *outer*.

    With *fails_on_write*, an attempt at a task that only reads fails if it has written.
    """

    def made() -> TaskFolders:
        # Of a worktree of ours we know git's own files, whatever agents do to the others.
        checkout = outer.checkout if isinstance(outer, RunWorktree) else None
        if checkout is None:
            checkout = _checkout_of(project, run, outer.folder)
        return TaskFolders(checkout, run, project.redaction, fails_on_write=fails_on_write)

    return TaskWorktrees(outer, made)


def _task_places(project: Project, run: str | None) -> TaskFolders:
    """Return what looks after the worktrees of the run called *run* in the project's folder."""
    checkout = _checkout_of(project, run, project.settings.project_dir)
    return TaskFolders(checkout, run, project.redaction)


def _checkout_of(project: Project, run: str | None, folder: Path) -> Checkout:
    """Return what git sees of *folder*, where agents of the run called *run* work."""
    settings = project.settings
    folders = folders_of(settings, state_path_of(settings, run))._replace(project=folder)
    return Checkout(folders, Git(folder, allowed=project.allowed))


# --- what `check` finds ------------------------------------------------------------------------


def diagnostics(project: Project) -> Iterator[Diagnostic]:
    """Yield why a run would not get its work tree, and what is wrong with those that there are."""
    if project.settings.worktree:
        hint = "commit the project to a repository, or leave worktree out"
        for problem in _task_places(project, None).problems():
            without = WorkTreeRefused(problem.message, where=problem.where, hint=hint)
            yield from of_error(Area.CONFIGURATION, without)
        yield from _check_lacking(project)
    for one in project.unmerged():
        yield Diagnostic(Level.WARNING, Area.FILES, one.words, None, one.hint)
    for name in (None, *project.run_names()):
        for refusal, can_be_mended in _task_places(project, name).foreign():
            level = Level.WARNING if can_be_mended else Level.ERROR
            yield from of_error(Area.STATE, refusal, level)


def _check_lacking(project: Project, *, in_team: bool = False) -> Iterator[Diagnostic]:
    """Yield what a fresh worktree would lack, if no setup seems to bring it."""
    found = _task_places(project, None).lacking()
    if not in_team:
        found = found.without(project.settings.setup)
    for is_sure, message, hint in found.told(in_team=in_team):
        yield Diagnostic(
            Level.WARNING if is_sure else Level.NOTICE, Area.FILES, message, None, hint
        )


def graph_findings(project: Project, flow: GraphFile) -> Iterator[Diagnostic]:
    """Yield why tasks would not get their own work trees."""
    has_none = not any(node.task is not None and node.task.worktree for node in flow.graph.nodes)
    if has_none or project.settings.worktree:
        return  # of the run's own worktree `findings` speaks
    for problem in _task_places(project, None).problems():
        yield from of_error(Area.WORKFLOW, problem, Level.WARNING)
    yield from _check_lacking(project, in_team=True)
    store = project.settings.store
    if project.settings.store_kind.carries_code and store.work.branch == NONE:
        message = "each machine merges its tasks' work only locally: store.work.branch is 'none'"
        hint = "set it to 'current' or to a branch, or use only one machine and push by hand"
        where = place_of(project.settings, "store", "work", "branch")
        yield Diagnostic(Level.WARNING, Area.WORKFLOW, message, where, hint)
