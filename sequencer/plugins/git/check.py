"""Checks whether a run can be shared through git, before anything is pushed.

If the remote may be asked, it shows its branches, which names are taken, and whether it would
accept a push (none is made). If it does not answer, that is a warning: work may start when it is
back.

Not promised: that a push will be accepted. Hooks of the server and rules for branch names are known
only when something is pushed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sequencer.errors import (
    ConfigurationError,
    RemoteUnreachable,
    StateRefused,
    format_other_command,
)
from sequencer.plugins.git.code.commit import is_abandoned_lock
from sequencer.plugins.git.code.tree import find_git_operation
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.git.state.branch import WHO_MAY_PUSH
from sequencer.plugins.git.state.locks import find_stale_locks
from sequencer.plugins.git.state.remote import NO_ATOMIC, push_settings, remote_folder
from sequencer.plugins.git.state.store import GitStore
from sequencer.project.diagnostics import Area, Diagnostic, Level, diagnose_error, locate_setting
from sequencer.project.project import Project
from sequencer.project.schema import CURRENT, NONE
from sequencer.project.settings import Settings
from sequencer.project.store_requests import CheckRequest
from sequencer.store.head import read_head

GIT_TIMEOUT_S = 10.0
NEEDED = (2, 29)
"""The oldest version of git that works: it has `fetch --no-write-fetch-head`."""
SHOWN_PATHS = 5
POLLS_IN_A_LEASE = 4
"""How many times an observer should poll before a lease expires."""
_NOWHERE = re.compile("does not appear to be|not found|404")
_DURABLE = ("core.fsync", "core.fsyncObjectFiles")
"""Settings of git since 2.36, and of older versions; if one is set, there is no warning."""
_HEADS = "refs/heads/"
_MARKERS = (".gitignore", ".gitkeep")


def check_store(request: CheckRequest) -> Iterator[Diagnostic]:
    """Yield the problems with sharing a run through git, the most basic first."""
    settings, store = request.settings, request.store
    assert isinstance(store, GitStore)  # noqa: S101 - this check belongs to the git store kind
    yield from _check_configuration(settings, store)
    git = Git(settings.project_dir, timeout_s=GIT_TIMEOUT_S, allowed=store.branch.git.allowed)
    if (yield from _yield_problems(_check_repository(settings, git))):
        return
    yield from _check_locks(settings, store, git)
    yield from _check_tracked(settings, git)
    yield from _check_large_files(settings, git)
    yield from _check_branches(settings, store, git)
    if (yield from _yield_problems(_check_remote_name(settings, git))):
        return
    if request.acts:
        yield from _check_remote(settings, store)
    else:
        message, hint = "the remote was not asked", "'sequencer check --remote' asks it"
        yield Diagnostic(Level.NOTICE, Area.REMOTE, message, None, hint)


def _yield_problems(diagnostics: Iterator[Diagnostic]) -> Generator[Diagnostic, None, bool]:
    """Yield *diagnostics*; return whether there were any."""
    problems = list(diagnostics)
    yield from problems
    return bool(problems)


def _error(message: str, place: str | None, hint: str) -> Diagnostic:
    return Diagnostic(Level.ERROR, Area.REMOTE, message, place, hint)


# --- this clone ------------------------------------------------------------------------


def _check_configuration(settings: Settings, store: GitStore) -> Iterator[Diagnostic]:
    slow_s, place = settings.store.poll.slow_s, locate_setting(settings, "store", "ttl_s")
    if store.ttl_s < POLLS_IN_A_LEASE * slow_s:
        message = (
            f"a lease of {store.ttl_s:g} s is too short if this clone polls every {slow_s:g} s"
        )
        hint = (
            "another clone could take over a step whose holder is alive: set store.ttl_s to "
            f"{POLLS_IN_A_LEASE * slow_s:g} or more, or lower store.poll.slow_s"
        )
        yield Diagnostic(Level.WARNING, Area.CONFIGURATION, message, place, hint)


def _check_repository(settings: Settings, git: Git) -> Iterator[Diagnostic]:
    """Yield why git or the repository can't be used."""
    folder = str(settings.project_dir)
    if (version_error := git.check_version(NEEDED)) is not None:
        yield from diagnose_error(Area.REMOTE, version_error)
        return
    try:
        git.read_output("rev-parse", "--show-toplevel")
    except GitFailed as failed:
        hint = "clone the repository that the run is shared through, and work there"
        yield _error(f"is not in a git work tree: {failed.reason}", folder, hint)


def _check_remote_name(settings: Settings, git: Git) -> Iterator[Diagnostic]:
    """Yield an error if the remote is not configured."""
    name, names = settings.store.remote, git.read_output("remote").split()
    if name in names or ":" in name or "/" in name or Path(git.folder, name).exists():
        return
    hint = f"known remotes: {', '.join(names) or 'none'}; 'git remote add {name} ADDRESS' adds it"
    place = locate_setting(settings, "store", "remote")
    yield _error(f"there is no remote {name!r}", place, hint)


def _check_branches(settings: Settings, store: GitStore, git: Git) -> Iterator[Diagnostic]:
    """Yield an error if state and code would share a branch, or if no code can move."""
    work = settings.store.work.branch
    if work == NONE:
        return
    place = locate_setting(settings, "store", "work", "branch")
    try:
        current_branch = git.read_output("symbolic-ref", "--short", "--quiet", "HEAD")
    except GitFailed:
        current_branch = ""
    name = (_code_branch(store) or current_branch) if work == CURRENT else work
    state = store.branch.refs
    if name in (state.branch, state.beats.removeprefix("refs/heads/")):
        message = f"branch {name!r} holds the run's state; code needs another branch"
        yield _error(message, locate_setting(settings, "store", "branch"), "set store.branch")
    if operation := find_git_operation(Path(git.folder, git.read_output("rev-parse", "--git-dir"))):
        yield _error(f"{operation} is under way", place, "finish it or abort it")
    elif not current_branch:
        hint = "'git switch BRANCH'; or 'store: {work: {branch: none}}' leaves code alone"
        yield _error("HEAD is detached, so no branch of code can move", place, hint)
    elif name != current_branch:
        hint = f"{format_other_command('git', 'switch', name)}, or set store.work.branch"
        yield _error(f"{current_branch!r} is checked out, but code is on {name!r}", place, hint)


def _code_branch(store: GitStore) -> str | None:
    """Return the branch of the run's code from the local state file, without asking the remote.

    None: not known. Problems with that file are reported by the check of the state.
    """
    with suppress(StateRefused, OSError):
        work = (read_head(store.state_path).content or {}).get("work")
        branch = work.get("branch") if isinstance(work, dict) else None
        return branch if isinstance(branch, str) else None
    return None


def _check_locks(settings: Settings, store: GitStore, git: Git) -> Iterator[Diagnostic]:
    """Yield old git locks in this clone, and on the remote if that is a folder of this machine.

    Locks on this program's own refs and commits are left out: they are removed automatically.
    """
    git_dir, common = (
        git.folder / git.read_output("rev-parse", f"--git-{d}dir") for d in ("", "common-")
    )
    folders_of_area = [(Area.FILES, (git_dir, common) if git_dir != common else (git_dir,))]
    if settings.store.work.branch == NONE:
        folders_of_area.clear()  # no files of the user are written
    if (remote := remote_folder(git, store.branch.remote.name)) is not None:
        folders_of_area.append((Area.REMOTE, (remote,)))
    for area, folders in folders_of_area:
        for lock in find_stale_locks(*folders):
            is_own_ref = "/refs/worktree/sequencer" in lock.path.as_posix()
            if not is_own_ref and not is_abandoned_lock(lock.path):
                message = f"a git lock is in the way: {lock.description}"
                yield Diagnostic(Level.WARNING, area, message, str(lock.path), lock.hint)


def _check_tracked(settings: Settings, git: Git) -> Iterator[Diagnostic]:
    """Yield an error if git tracks files that every step writes."""
    top = Path(git.read_output("rev-parse", "--show-toplevel"))
    state, logs_folder = settings.state_file.parent, settings.logs_dir
    for folder, key in ((state, "state_file"), (logs_folder, "logs_dir")):
        is_inside = folder.resolve().is_relative_to(top.resolve())
        if not is_inside or folder == settings.project_dir:
            continue
        output = git.run("ls-files", "-z", "--cached", "--", f":(literal){folder}").stdout
        names = [name for name in output.decode("utf-8", "replace").split("\0") if name]
        names = [name for name in names if Path(name).name not in _MARKERS]
        if names:
            yield _tracked_files_error(key, os.path.relpath(folder, settings.project_dir), names)


def _check_large_files(settings: Settings, git: Git) -> Iterator[Diagnostic]:
    """Yield a warning if git-lfs keeps files: a step's push does not upload their contents."""
    if settings.store.work.branch == NONE:
        return
    pattern = "^[^#]*[[:space:]]filter=lfs"
    argv = ("grep", "--untracked", "-l", "-z", "-I", "-e", pattern)
    pathspecs = (":(top,glob)**/.gitattributes",)
    try:
        output = git.run(*argv, "--", *pathspecs, accepts=(0, 1)).stdout
    except GitFailed:
        return
    names = [name for name in output.decode("utf-8", "replace").split("\0") if name]
    if names:
        message = (
            "files are kept by git-lfs, and a step's push does not upload their contents: "
            "another clone gets pointers without contents"
        )
        hint = "have an agent or a hook run 'git lfs push --all REMOTE' before its step ends"
        yield Diagnostic(Level.WARNING, Area.FILES, message, names[0], hint)


def _tracked_files_error(key: str, path: str, names: list[str]) -> Diagnostic:
    listing = ", ".join(names[:SHOWN_PATHS]) + (" …" if len(names) > SHOWN_PATHS else "")
    message = (
        f"git tracks files of the run here ({listing}); each step changes them, and switching "
        "branches puts them back"
    )
    folder = shlex.quote(path)
    hint = (
        f"git rm -r -q --cached {folder} && printf '*\\n!.gitignore\\n' > {folder}/.gitignore && "
        f"git add -f {folder}/.gitignore && git commit -m 'The run is not part of the code'"
    )
    return Diagnostic(Level.ERROR, Area.FILES, message, f"{key}: {path}", hint)


def check_project(project: Project, run: str | None, *, looks: bool) -> Iterator[Diagnostic]:
    """Yield problems that git would make with the files of *project*, for any store."""
    del run, looks
    settings = project.settings
    yield from check_ignored(settings.project_dir, settings.state_file, project.agents.environment)


def check_ignored(folder: Path, state: Path, env: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Yield a warning if an agent's ``git add --all`` would commit the run's own files."""
    is_repository = any((parent / ".git").exists() for parent in (folder, *folder.parents))
    if not is_repository or not state.is_relative_to(folder):
        return
    # -z with stdin: git never takes the path for an option or a pattern.
    argv = ("check-ignore", "--quiet", "--no-index", "-z", "--stdin")
    try:
        result = Git(folder, env, timeout_s=GIT_TIMEOUT_S).run(
            *argv, stdin=os.fsencode(state), accepts=(0, 1, 128)
        )
    except (GitFailed, ConfigurationError):
        return
    if result.code == 1:
        hint = f"put '*' into {state.parent / '.gitignore'}; 'sequencer init' does it"
        message = "git does not ignore it, so an agent that commits everything commits it too"
        yield Diagnostic(Level.WARNING, Area.FILES, message, str(state), hint)


# --- the remote ------------------------------------------------------------------------


def _check_remote(settings: Settings, store: GitStore) -> Iterator[Diagnostic]:
    """Yield the problems of the remote; bring the run here if possible."""
    place = locate_setting(settings, "store", "remote")
    try:
        store.pull()
    except RemoteUnreachable as error:
        is_wrong = error.is_denied or _NOWHERE.search(error.message) is not None
        level = Level.ERROR if is_wrong else Level.WARNING
        yield Diagnostic(level, Area.REMOTE, error.message, place, error.hint)
        return
    except StateRefused as error:
        yield from diagnose_error(Area.STATE, error)
    yield from _check_remote_folder(settings, store)
    yield from _check_names(settings, store)
    yield from _check_push(settings, store, place)


def _check_remote_folder(settings: Settings, store: GitStore) -> Iterator[Diagnostic]:
    """Yield the problems of a remote that is a folder on this machine.

    It may be a clone with the branch that should move checked out, or git may be configured there
    so that a power cut can lose accepted pushes.
    """
    folder = remote_folder(store.branch.git, store.branch.remote.name)
    if folder is None:
        return
    remote_git = Git(folder, timeout_s=GIT_TIMEOUT_S, git_dir=folder)
    work = settings.store.work.branch
    try:
        if remote_git.read_output("rev-parse", "--is-bare-repository") != "true":
            rule = remote_git.read_output(
                "config", "--default", "refuse", "receive.denyCurrentBranch"
            )
            branch = remote_git.read_output("symbolic-ref", "--short", "HEAD")
            is_refused = rule not in ("ignore", "warn", "updateInstead", "false")
            if is_refused and work != NONE and work in (CURRENT, branch):
                message = f"branch {branch} is checked out there, so it accepts no push"
                hint = "use a bare repository as the remote: 'git clone --bare'"
                yield _error(message, str(folder), hint)
        elif not any(
            remote_git.read_output("config", "--get", key, accepts=(0, 1)) for key in _DURABLE
        ):
            message = "git writes branches there without fsync: a power cut may lose accepted steps"
            hint = f"git -C {shlex.quote(str(folder))} config core.fsync all"
            yield Diagnostic(Level.WARNING, Area.REMOTE, message, str(folder), hint)
    except GitFailed:
        return


def _check_names(settings: Settings, store: GitStore) -> Iterator[Diagnostic]:
    """Yield an error if a branch would be below another one, which git does not allow."""
    branch, work = store.branch, settings.store.work.branch
    needed_refs = [branch.refs.state, branch.refs.beats]
    try:
        if work == CURRENT:
            needed_refs += branch.git.read_output(
                "symbolic-ref", "--quiet", "HEAD", accepts=(0, 1)
            ).split()
        elif work != NONE:
            needed_refs.append(f"{_HEADS}{work}")
        parent_refs = {
            ref[:end]
            for ref in needed_refs
            for end in range(len(_HEADS), len(ref))
            if ref[end] == "/"
        }
        patterns = (*sorted(parent_refs), *(f"{ref}/*" for ref in needed_refs))
        output = branch.git.read_output("ls-remote", "--refs", "--", branch.remote.name, *patterns)
    except GitFailed:
        return
    remote_refs = {line.partition("\t")[2] for line in output.splitlines()}
    for ref in needed_refs:
        for other_ref in sorted({*remote_refs, *needed_refs}):
            is_above = other_ref not in needed_refs and ref.startswith(f"{other_ref}/")
            if not is_above and not other_ref.startswith(f"{ref}/"):
                continue
            upper_name, lower_name = (
                repr(name.removeprefix(_HEADS)) for name in sorted((ref, other_ref))
            )
            message = (
                f"branches {upper_name} and {lower_name} can't both exist: one is below the other"
            )
            hint = "rename the one that is not the run's, or set store.branch"
            yield _error(message, locate_setting(settings, "store", "branch"), hint)


def _check_push(settings: Settings, store: GitStore, place: str) -> Iterator[Diagnostic]:
    """Yield why the remote would refuse a push, as far as a dry run shows it."""
    branch, refs = store.branch, store.branch.refs
    tip = branch.tip()
    commit = tip or branch.objects.resolve("HEAD^{commit}")
    if commit is None:
        return
    lease = f"--force-with-lease={refs.state}:{tip or ''}"
    argv = ("push", "--dry-run", "--porcelain", "--no-verify", "--atomic", lease, "--")
    try:
        name = branch.remote.name
        pair, options = f"{commit}:{refs.state}", push_settings(name)
        branch.git.run(*argv, name, pair, settings=options, accepts=(0, 1))
    except GitFailed as failed:
        if NO_ATOMIC not in failed.local_stderr:
            yield _error(f"does not accept pushes: {failed.reason}", place, WHO_MAY_PUSH)
        elif settings.store.work.branch != NONE:
            message = "can't move several branches at once, so code can't move with the state"
            hint = "'store: {work: {branch: none}}' leaves code alone; or use another remote"
            yield _error(message, place, hint)
        return
    folder = remote_folder(branch.git, branch.remote.name)
    # A dry run does not check whether git may write to the folder.
    locked_folders = [
        folder_name
        for folder_name in ("objects", "refs")
        if folder and not os.access(folder / folder_name, os.W_OK)
    ]
    if folder is not None and locked_folders:
        yield _error(f"can't be written to: {', '.join(locked_folders)}", str(folder), WHO_MAY_PUSH)
