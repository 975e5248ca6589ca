"""Shows what a step changed, if the run's code is in git or its task has its own worktree."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from msgspec import Struct

from sequencer.cli.views.text import strip_controls
from sequencer.errors import SequencerError
from sequencer.history.story import StoryEntry
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.web.site import RunRow

MAX_LINES = 2000
GIT_S = 10.0
_KINDS = {"+": "add", "-": "del", "@": "hunk"}


class Diff(Struct, frozen=True):
    """The change of one step."""

    commit: str
    summary: str
    """Git's summary of the changed files, or why the change can't be shown."""
    lines: tuple[tuple[str, str], ...]
    """(kind, text) of each line; the kind is add, del, hunk, file, or empty."""
    command: str = ""
    """The command that shows all of it; empty: nothing was left out."""


def read_diff(row: RunRow, attempt: StoryEntry) -> Diff | None:
    """Return the change that *attempt* made; None: its record has none.

    This runs no code of the repository, and asks no remote.
    """
    project = row.project.project
    verb, commits = _git_arguments(row, attempt)
    if not commits or len(set(commits)) < len(commits):
        return None
    git = Git(project.settings.project_dir, timeout_s=GIT_S)
    form = ("--format=",) if verb == "show" else ()
    options = (*form, "--no-color", "--no-ext-diff", "--no-textconv", "--end-of-options", *commits)
    try:
        stat, text = (
            git.read_output(verb, "--stat", *options),
            git.read_output(verb, "--patch", *options),
        )
    except (GitFailed, SequencerError) as error:
        return Diff(commits[-1], f"it can't be shown: {error}", ())
    lines = project.redaction.hide_text(strip_controls(text)).splitlines()
    # An agent chose these names: none may act as an option when a person pastes the command.
    guard = ("--end-of-options",) if any(commit.startswith("-") for commit in commits) else ()
    command = shlex.join(("git", verb, *guard, *commits)) if len(lines) > MAX_LINES else ""
    return Diff(commits[-1], strip_controls(stat).strip(), tuple(_classify_lines(lines)), command)


def _classify_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    is_in_hunk = False
    for line in lines[:MAX_LINES]:
        # Before a file's first hunk, its names also start with + and -.
        is_in_hunk = line.startswith("@@") or (is_in_hunk and not line.startswith("diff --git"))
        yield _KINDS.get(line[:1], "") if is_in_hunk else "file", line


def _git_arguments(row: RunRow, attempt: StoryEntry) -> tuple[str, tuple[str, ...]]:
    """Return the git command that shows the change of *attempt*, and its commits; () if none."""
    remains = attempt.outcome.get("left") or {}
    if remains.get("merged"):
        # The task had its own worktree: show what its merge brought.
        return "diff", (f"{remains['merged']}^1", str(remains["merged"]))
    if remains.get("branch"):
        return "diff", (f"HEAD...{remains['branch']}",)
    work = attempt.outcome.get("work") or {}
    commit, base = work.get("commit"), work.get("base")
    if commit is None:
        return "", ()
    if not base:
        facts = row.project.story(row, is_whole=False).facts
        earlier_facts = (fact for fact in reversed(facts) if fact["revision"] < attempt.revision)
        works = ((fact.get("outcome") or {}).get("work") for fact in earlier_facts)
        base = next((work["commit"] for work in works if work), None)
    return ("diff", (str(base), str(commit))) if base else ("show", (str(commit),))
