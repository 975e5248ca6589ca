"""What an accepted step has changed in the code, where code moves with the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from sequencer.cli.views.text import plain
from sequencer.errors import SequencerError
from sequencer.git.process import Git, GitFailed
from sequencer.web.records import Try
from sequencer.web.site import RunRow

MOST_LINES = 2000
GIT_S = 10.0
_KINDS = {"+": "add", "-": "del", "@": "hunk", "d": "file"}


class DiffLine(NamedTuple):
    """One line, and what it is: add, del, hunk, file, or empty."""

    kind: str
    text: str


class Diff(Struct, frozen=True):
    """The change of one step."""

    commit: str
    summary: str
    """What git says of the files, or why there is nothing to show."""
    lines: tuple[DiffLine, ...]
    is_cut: bool = False


def diff_of(row: RunRow, one: Try) -> Diff | None:
    """Return what the accepted attempt *one* has changed; None: its run moves no code.

    Nothing of the repository runs, and no remote is asked.
    """
    project = row.project.project
    before, after = _commits(row, one)
    if after is None or before == after:
        return None
    git = Git(project.settings.project_dir, timeout_s=GIT_S)
    how = ("--no-color", "--no-ext-diff", "--no-textconv", "--end-of-options")
    ends = (before, after) if before is not None else (after,)
    verb = "diff" if before is not None else "show"
    try:
        stat = git.text(verb, "--stat", *_form(verb), *how, *ends)
        text = git.text(verb, "--patch", *_form(verb), *how, *ends)
    except (GitFailed, SequencerError) as error:
        return Diff(after, f"it can't be shown: {error}", ())
    hidden = project.redaction.hide_text(plain(text)).splitlines()
    return Diff(after, plain(stat).strip(), tuple(_lines(hidden)), len(hidden) > MOST_LINES)


def _form(verb: str) -> tuple[str, ...]:
    return ("--format=",) if verb == "show" else ()


def _lines(lines: list[str]) -> Iterator[DiffLine]:
    is_in_hunk = False
    for line in lines[:MOST_LINES]:
        if line.startswith("diff --git"):
            is_in_hunk = False
        kind = _KINDS.get(line[:1], "")
        is_hunk = line.startswith("@@")
        is_in_hunk = is_in_hunk or is_hunk
        # Before its first hunk a file has its names, also with + and -.
        yield DiffLine(kind if is_in_hunk else "file", line)


def _commits(row: RunRow, one: Try) -> tuple[str | None, str | None]:
    """Return the commits that the run's code was at before and after the attempt *one*."""
    work = one.outcome.get("work") or {}
    if work.get("base"):
        return str(work["base"]), work.get("commit")
    facts = row.project.story(row, is_whole=False).facts
    earlier = (fact for fact in reversed(facts) if fact["revision"] < one.revision)
    works = ((fact.get("outcome") or {}).get("work") for fact in earlier)
    return next((each["commit"] for each in works if each), None), work.get("commit")
