"""What else a run has left behind that shows how far it came.

A restore believes the journal. Where the journal itself was cut short, or an older copy of
it was put in its place, the rest of the run's files still shows more: a token that was
granted, a revision that was published, a step whose log has its last line. Read only where
state.json has to be restored, and once by each process that starts to write.

Not promised: that every loss shows. A run whose logs, results and heartbeats are gone too,
or steps that a person accepted by hand, leave nothing to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sequencer.errors import CorruptState
from sequencer.model.head import Head
from sequencer.store import folder as folders
from sequencer.store.identity import is_proven_dead
from sequencer.store.journal import Record, decode
from sequencer.store.journal_file import JournalFile, read_regular
from sequencer.store.strictjson import MAX_BYTES

MAX_LOST_TOKENS = 1_000_000
"""A token counts as granted up to here above the newest one that is known; nobody loses more."""
_TOKEN = re.compile(rb'"token"\s*:\s*(\d{1,19})(?=[\s,}])')
_REVISION = re.compile(rb'"revision"\s*:\s*(\d{1,19})(?=[\s,}])')
_PLACES = (("beats", re.compile(r"(\d+)(?:\..*)?")), ("results", re.compile(r"\d+-(\d+)(?:-.*)?")))
"""Folders whose entries are named after a token."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Something that shows that a run had come as far as a token or a revision."""

    where: Path
    token: int = 0
    revision: int = 0
    has_ended: bool = False
    """The attempt with *token* was over; whether its end was accepted is not said."""


Witness = Callable[[str], Iterable[Trace]]
"""From a run's id to what its step logs show, which a store does not know; newest first."""


def no_witness(run_id: str) -> Iterable[Trace]:
    """Return nothing: there are no step logs to ask."""
    del run_id
    return ()


def traces(
    state_path: Path, journal: JournalFile, run_id: str | None, last: Record | None
) -> Iterator[Trace]:
    """Yield what the folder of the run *run_id* shows, but for its good records.

    *last* is the last good record of the current journal; None if that has none.

    Raises:
        CorruptState: a folder or a file may not be read, so nobody can tell.
    """
    folder = state_path.parent
    if run_id is not None:
        yield from _in_head(state_path, run_id)
    if last is not None:
        yield from _behind(journal.path, last)
    for name, pattern in _PLACES:
        for entry in names_in(folder / name):
            if match := pattern.fullmatch(entry):
                yield Trace(folder / name / entry, token=int(match[1]))
    for path in journal.rotated()[-1:] if folder.is_dir() else ():
        yield from _newest_of(path)


def beyond(head: Head, revision: int, found: Iterable[Trace]) -> Trace | None:
    """Return what of *found* shows most that the run had come further than *head* at *revision*.

    A token far above every other is somebody's joke and shows nothing.
    """
    most: Trace | None = None
    for trace in found:
        is_token = head.token < trace.token <= head.token + MAX_LOST_TOKENS
        if not is_token and trace.revision <= revision:
            continue
        if most is None or (trace.token, trace.revision) > (most.token, most.revision):
            most = trace
    return most


def unheard_end(head: Head, found: Iterable[Trace]) -> Trace | None:
    """Return what of *found* shows the end of an attempt that *head* has as under way.

    Its worker has to be dead: one that is alive is still to say how it ended.
    """
    dead = {claim.token for claim in head.claims if is_proven_dead(claim.owner)}
    return next((trace for trace in found if trace.has_ended and trace.token in dead), None)


def in_words(trace: Trace, head: Head) -> str:
    """Return what *trace* shows, beside *head*, in one clause."""
    if trace.token in {claim.token for claim in head.claims}:
        return f"{trace.where} shows that the attempt with token {trace.token} had ended"
    if trace.token > head.token:
        return f"{trace.where} shows token {trace.token}, and {head.token} is the newest known"
    return f"{trace.where} shows revision {trace.revision}"


def tokens_in(data: bytes) -> tuple[int, ...]:
    """Return every number that stands behind "token" in *data*, readable or not."""
    return tuple(int(match) for match in set(_TOKEN.findall(data)))


def names_in(folder: Path) -> list[str]:
    """Return the names in *folder*; none if it is not there.

    Raises:
        CorruptState: its permissions forbid a look.
    """
    try:
        return folders.names(folder)
    except OSError as error:
        raise CorruptState(
            f"can't be looked at: {error.strerror}",
            where=str(folder),
            hint="fix its permissions, then try again",
        ) from error


def _in_head(path: Path, run_id: str) -> Iterator[Trace]:
    """Yield what the bytes of a head of *run_id* show: it was published after it was accepted."""
    try:
        data = read_regular(path, max_bytes=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError, CorruptState):
        return
    if run_id.encode() in data:
        # What stands there may also be another program's, or half of a merge.
        revisions = map(int, _REVISION.findall(data))
        yield Trace(path, max(tokens_in(data), default=0), max(revisions, default=0))


def _behind(journal: Path, last: Record) -> Iterator[Trace]:
    """Yield what stands behind the last good record, but for the one that was being written.

    That one was not accepted: whoever wrote it was stopped in the middle.
    """
    try:
        data = read_regular(journal, last.end)
    except (FileNotFoundError, CorruptState):
        return
    for line in data.split(b"\n"):
        # A whole line shows it twice; the smaller one was not damaged upwards.
        shown = min(map(int, _REVISION.findall(line)), default=0)
        if shown > last.revision + 1:
            # The line before it can only have been accepted.
            yield Trace(journal, revision=shown - 1)


def _newest_of(path: Path) -> Iterator[Trace]:
    """Yield what the last good record of a journal that was put aside shows."""
    try:
        data = read_regular(path)
    except (FileNotFoundError, CorruptState):
        return
    for line in reversed(data.split(b"\n")):
        try:
            record = decode(line)
        except ValueError:
            continue
        token = record["head"].get("token")
        yield Trace(path, token if type(token) is int else 0, record["revision"])
        return
