"""What a step has changed, where code moves with the run or a task has a worktree of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import NamedTuple

from sequencer.cli.views.text import plain
from sequencer.errors import SequencerError
from sequencer.history.story import Try
from sequencer.plugins.git.process import Git, GitFailed
from sequencer.plugins.web.site import RunRow

MOST_LINES = 2000
GIT_S = 10.0
_KINDS = {"+": "add", "-": "del", "@": "hunk"}


class Diff(NamedTuple):
    """The change of one step."""

    commit: str
    summary: str
    """What git says of the files, or why there is nothing to show."""
    lines: tuple[tuple[str, str], ...]
    """Of each what it is (add, del, hunk, file, or empty), and its text."""
    command: str = ""
    """That shows what is left out here; empty: nothing is."""


def diff_of(row: RunRow, one: Try) -> Diff | None:
    """Return what the attempt *one* has changed; None: nothing that its record tells of.

    Nothing of the repository runs, and no remote is asked.
    """
    project = row.project.project
    verb, ends = _asked(row, one)
    if not ends or len(set(ends)) < len(ends):
        return None
    git = Git(project.settings.project_dir, timeout_s=GIT_S)
    form = ("--format=",) if verb == "show" else ()
    how = (*form, "--no-color", "--no-ext-diff", "--no-textconv", "--end-of-options", *ends)
    try:
        stat, text = git.text(verb, "--stat", *how), git.text(verb, "--patch", *how)
    except (GitFailed, SequencerError) as error:
        return Diff(ends[-1], f"it can't be shown: {error}", ())
    hidden = project.redaction.hide_text(plain(text)).splitlines()
    # They are an agent's words as well: none is an option of whoever pastes them.
    guard = ("--end-of-options",) if any(end.startswith("-") for end in ends) else ()
    command = shlex.join(("git", verb, *guard, *ends)) if len(hidden) > MOST_LINES else ""
    return Diff(ends[-1], plain(stat).strip(), tuple(_lines(hidden)), command)


def _lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    is_in_hunk = False
    for line in lines[:MOST_LINES]:
        # Before its first hunk a file has its names, also with + and -.
        is_in_hunk = line.startswith("@@") or (is_in_hunk and not line.startswith("diff --git"))
        yield _KINDS.get(line[:1], "") if is_in_hunk else "file", line


def _asked(row: RunRow, one: Try) -> tuple[str, tuple[str, ...]]:
    """Return which git command shows what the attempt *one* has changed, and its commits."""
    left = one.outcome.get("left") or {}
    if left.get("merged"):
        # Of a task with a worktree of its own: what its merge has brought.
        return "diff", (f"{left['merged']}^1", str(left["merged"]))
    if left.get("branch"):
        return "diff", (f"HEAD...{left['branch']}",)
    work = one.outcome.get("work") or {}
    after, before = work.get("commit"), work.get("base")
    if after is None:
        return "", ()
    if not before:
        facts = row.project.story(row, is_whole=False).facts
        earlier = (fact for fact in reversed(facts) if fact["revision"] < one.revision)
        works = ((fact.get("outcome") or {}).get("work") for fact in earlier)
        before = next((each["commit"] for each in works if each), None)
    return ("diff", (str(before), str(after))) if before else ("show", (str(after),))
