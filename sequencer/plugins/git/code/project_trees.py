"""The work trees of a project's runs, in git; implements what `project.worktrees` declares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from sequencer.engine.tree_state import UnmergedWork
from sequencer.engine.workspace import Workspace
from sequencer.errors import SequencerError, WorkTreeRefused
from sequencer.plugins.git.code.checkout import Checkout
from sequencer.plugins.git.code.gathering import TaskTrees
from sequencer.plugins.git.code.run_worktree import RunWorktree
from sequencer.plugins.git.code.set_aside import remove_attempt_refs
from sequencer.plugins.git.code.task_folders import TaskFolders
from sequencer.plugins.git.code.task_worktrees import TaskWorktrees
from sequencer.plugins.git.code.unmerged import Unmerged
from sequencer.plugins.git.code.workspace import list_folders
from sequencer.plugins.git.process import Git
from sequencer.project.diagnostics import Area, Diagnostic, Level, diagnose_error, locate_setting
from sequencer.project.project import Project
from sequencer.project.runs import get_state_path
from sequencer.project.schema import NONE
from sequencer.project.trusting import ensure_unchanged
from sequencer.workflows.finding import GraphFile


def run_worktree(
    project: Project, run: str | None, outer: Workspace, notify: Callable[[str], None]
) -> RunWorktree:
    """Return the worktree for all steps of the run called *run*; *notify* gets its notices."""
    settings, trusted_files = project.settings, project.trust.get_trusted_files("setup")
    folder = settings.project_dir

    def vet(cwd: Path) -> None:
        for path, content in trusted_files.items():
            copy = cwd / os.path.relpath(path, os.path.realpath(folder))
            ensure_unchanged(copy, content, "setup")

    folders, limit_s = _task_folders(project, run), settings.setup_timeout_s
    return RunWorktree(outer, folders, settings.setup, limit_s, vet=vet, notify=notify)


def find_unmerged_work(project: Project) -> tuple[UnmergedWork, ...]:
    """Return the work of *project*'s runs that is not merged; nothing is written."""
    settings = project.settings
    git, hide = Git(settings.project_dir), project.redaction

    def open_checkout(name: str | None) -> Checkout:
        return Checkout(list_folders(settings, get_state_path(settings, name)), git)

    names = (None, *project.run_names())
    trees = {name: TaskTrees(open_checkout(name), name, hide) for name in names}

    def is_under_way(run: str | None, run_id: str) -> bool:
        try:
            head = project.run(run).head
        except SequencerError:
            return True  # not known; other code reports what is wrong with the run
        return head is not None and head.run_id == run_id and head.status != "complete"

    stranded_work = Unmerged(git, trees, is_under_way).find()
    return tuple(work.to_unmerged_work() for work in stranded_work)


def forget_attempts(project: Project, run: str | None) -> None:
    """Remove the refs of the attempts of *run*; if git fails, they stay."""
    remove_attempt_refs(Git(project.settings.project_dir), run)


def task_worktrees(
    project: Project, run: str | None, outer: Workspace, *, fails_on_write: bool
) -> TaskWorktrees:
    """Return the worktrees for the tasks of the run called *run*; other steps work in *outer*.

    With *fails_on_write*, an attempt at a task that only reads fails if it writes.
    """

    def make() -> TaskFolders:
        # The run's worktree knows git's own files, so it works even if agents change ``.git``.
        checkout = outer.checkout if isinstance(outer, RunWorktree) else None
        if checkout is None:
            checkout = _open_checkout(project, run, outer.folder)
        return TaskFolders(checkout, run, project.redaction, fails_on_write=fails_on_write)

    return TaskWorktrees(outer, make)


def _task_folders(project: Project, run: str | None) -> TaskFolders:
    """Return the task folders of the run called *run* in the project's folder."""
    checkout = _open_checkout(project, run, project.settings.project_dir)
    return TaskFolders(checkout, run, project.redaction)


def _open_checkout(project: Project, run: str | None, folder: Path) -> Checkout:
    """Return the checkout in *folder*, where agents of the run called *run* work."""
    settings = project.settings
    folders = replace(list_folders(settings, get_state_path(settings, run)), project=folder)
    return Checkout(folders, Git(folder, allowed=project.allowed))


# --- for `sequencer check` ---------------------------------------------------------------------


def diagnostics(project: Project) -> Iterator[Diagnostic]:
    """Yield why a run would get no worktree, and what is wrong with existing worktrees."""
    if project.settings.worktree:
        hint = "commit the project to a repository, or leave worktree out"
        for problem in _task_folders(project, None).find_problems():
            error = WorkTreeRefused(problem.message, where=problem.where, hint=hint)
            yield from diagnose_error(Area.CONFIGURATION, error)
        yield from _check_missing_files(project)
    elif project.settings.setup:
        message = "these commands never run: setup is only for the worktree of a run"
        place = locate_setting(project.settings, "setup")
        hint = "add 'worktree: true', or remove setup"
        yield Diagnostic(Level.WARNING, Area.CONFIGURATION, message, place, hint)
    for work in project.find_unmerged_work():
        yield Diagnostic(Level.WARNING, Area.FILES, work.words, None, work.hint)
    for name in (None, *project.run_names()):
        for refusal, is_fixable in _task_folders(project, name).find_foreign_worktrees():
            level = Level.WARNING if is_fixable else Level.ERROR
            yield from diagnose_error(Area.STATE, refusal, level)


def _check_missing_files(project: Project, *, in_team: bool = False) -> Iterator[Diagnostic]:
    """Yield what a new worktree would lack and no setup command seems to bring."""
    missing_files = _task_folders(project, None).find_missing_files()
    if not in_team:
        missing_files = missing_files.after_setup(project.settings.setup)
    for is_sure, message, hint in missing_files.messages(in_team=in_team):
        yield Diagnostic(
            Level.WARNING if is_sure else Level.NOTICE, Area.FILES, message, None, hint
        )


def graph_findings(project: Project, flow: GraphFile) -> Iterator[Diagnostic]:
    """Yield why tasks of *flow* would not get their own worktrees."""
    has_none = not any(node.task is not None and node.task.worktree for node in flow.graph.nodes)
    if has_none or project.settings.worktree:
        return  # `diagnostics` reports about the run's own worktree
    for problem in _task_folders(project, None).find_problems():
        yield from diagnose_error(Area.WORKFLOW, problem, Level.WARNING)
    yield from _check_missing_files(project, in_team=True)
    store = project.settings.store
    if project.settings.store_kind.carries_code and store.work.branch == NONE:
        message = "each machine merges its tasks' work only locally: store.work.branch is 'none'"
        hint = "set it to 'current' or to a branch, or use only one machine and push by hand"
        place = locate_setting(project.settings, "store", "work", "branch")
        yield Diagnostic(Level.WARNING, Area.WORKFLOW, message, place, hint)
