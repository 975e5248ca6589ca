"""From options to a `GitStore`: the repository, the remote's name and the names of the refs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequencer.model.decisions import Placed
from sequencer.model.head import Head
from sequencer.model.names import ref_part, slug
from sequencer.store.file import FileStore
from sequencer.store.git.branch import Branch, Refs
from sequencer.store.git.command import Git
from sequencer.store.git.objects import Objects
from sequencer.store.git.remote import Remote
from sequencer.store.git.store import GitStore

DEFAULT_RUN = "default"
LOCAL = "refs/worktree/sequencer/"
"""Where refs are kept here. A run belongs to one work tree, and so do these: git gives each
that hangs on the same repository its own (`git worktree`)."""
_OWN = "sequencer/"
_OF = "of"
"""The folder with the heartbeats of branches that are not called as usual."""
LOCK_LEASES = 4
"""How many time limits of git somebody waits for another process of this clone."""


@dataclass(frozen=True, slots=True)
class GitOptions:
    """What a git store may be told; see ``store:`` in docs/configuration.md."""

    remote: str = "origin"
    branch: str = "sequencer/{run}"
    """``{run}`` is the run's name, or ``default``; without it, named runs get theirs behind it."""
    timeout_s: float = 60.0
    """Of one git process that reaches the remote."""
    max_commits: int = 2000
    fast_s: float = 0.5
    """Between two looks at the remote, after something has happened."""
    slow_s: float = 15.0
    """The same when nothing happens for long."""
    patience_s: float = 1800.0
    """How long who works waits for a remote that does not answer."""
    ttl_s: float = 900.0
    rotate_bytes: int = 64 * 1024
    keep: int = 64


def refs_of(options: GitOptions, run: str | None) -> Refs:
    """Return the refs of the run whose folder is called *run*; None: the default run.

    >>> refs_of(GitOptions(), None).state
    'refs/heads/sequencer/default'
    """
    part = DEFAULT_RUN if run is None else ref_part(run)
    if run is not None and part == DEFAULT_RUN:
        part = slug(f"{run}\0")
    branch = options.branch.replace("{run}", part)
    if branch == options.branch and run is not None:
        branch = f"{branch}-{part}"
    # Not below the branch: git has no ref that is a folder as well.
    return Refs(
        f"refs/heads/{branch}",
        f"refs/heads/sequencer-beats/{_beats_name(branch)}",
        f"{LOCAL}{branch}",
    )


def _beats_name(branch: str) -> str:
    """Return how the heartbeats of *branch* are called; those of no other one are.

    >>> _beats_name("sequencer/x"), _beats_name("x"), _beats_name("sequencer/of")
    ('x', 'of/x', 'of/sequencer/of')
    """
    below = branch.removeprefix(_OWN)
    is_usual = branch.startswith(_OWN) and "/" not in below and below != _OF
    return below if is_usual else f"{_OF}/{branch}"


def open_git_store(
    state_path: Path,
    project_dir: Path,
    run: str | None,
    options: GitOptions,
    migrate: Callable[[dict[str, Any]], Head] | None = None,
    *,
    allowed: Mapping[str, str] | None = None,
    placed: Placed = lambda _: None,
) -> GitStore:
    """Return the store of *run*; neither folder nor remote are touched before they are needed.

    *allowed*: see `Git`. None: the run is only looked at, as this clone knows it. *placed*: see
    `FileStore`.
    """
    git = Git(project_dir, timeout_s=options.timeout_s, allowed=allowed)
    objects = Objects(git)
    remote = Remote(git, options.remote)
    branch = Branch(git, remote, objects, refs_of(options, run), state_path, options.max_commits)
    files = FileStore(
        state_path,
        ttl_s=options.ttl_s,
        rotate_bytes=options.rotate_bytes,
        keep=options.keep,
        migrate=migrate,
        placed=placed,
        peer=branch,
        lock_timeout_s=LOCK_LEASES * options.timeout_s,
    )
    return GitStore(
        branch, files, fast_s=options.fast_s, slow_s=options.slow_s, patience_s=options.patience_s
    )
