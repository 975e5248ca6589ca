from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from sequencer.errors import CorruptState, NewerSchema
from sequencer.model.head import Owner
from sequencer.store.diagnosis import Action, diagnose
from sequencer.store.file import FileStore
from sequencer.store.identity import this_process
from sequencer.store.journal import checksum
from sequencer.store.reading import ProgressMark
from sequencer.store.repair import Choice, repair
from tests.unit.store.broken_runs import begun, go_on, hold, journal_of, lines_of, read_run

GONE = 2**22 + 1
"""No process has a number this high."""


def refuses(state_path: Path, what: str) -> None:
    """Assert that reader and writer refuse the run because of *what*, and touch nothing."""
    before = (
        state_path.read_bytes() if state_path.exists() else None,
        journal_of(state_path).read_bytes(),
    )
    for verb in (read_run, go_on):
        with pytest.raises(CorruptState, match=what) as refused:
            verb(state_path)
        assert "sequencer repair" in (refused.value.hint or "")
    found = diagnose(state_path)
    assert found.action is Action.CHOOSE
    after = (
        state_path.read_bytes() if state_path.exists() else None,
        journal_of(state_path).read_bytes(),
    )
    assert after == before


def cut(state_path: Path, records: int) -> None:
    """Leave the first *records* of the journal, and half of the next one."""
    journal = journal_of(state_path)
    lines = lines_of(journal)
    journal.write_bytes(b"".join(lines[:records]) + lines[records][: len(lines[records]) // 2])


@pytest.mark.parametrize(
    "name",
    ["results/3-4", "results/3-4-0123456789abcdef", "beats/4", "beats/4.seen-12345678"],
)
def test_a_granted_token_forbids_restoring_an_older_state(tmp_path: Path, name: str) -> None:
    state_path = begun(tmp_path, 6)
    cut(state_path, 4)
    state_path.unlink()
    (state_path.parent / name).mkdir(parents=True)
    refuses(state_path, "token 4")
    done = repair(state_path, Choice.JOURNAL)
    assert done.head is not None
    # What the trace shows is never granted again, and the run works.
    assert (done.head.token, done.head.step_index) == (4, 3)
    assert go_on(state_path).step_index == 4


def test_a_head_cut_short_shows_the_revision_that_was_published(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 6)
    cut(state_path, 4)
    state_path.write_bytes(state_path.read_bytes()[:150])
    refuses(state_path, "revision 7")


def test_an_older_head_does_not_hide_a_token(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 2)
    older = state_path.read_bytes()
    begun(tmp_path, 4)
    cut(state_path, 5)
    state_path.write_bytes(older)
    (state_path.parent / "results" / "5-9").mkdir(parents=True)
    refuses(state_path, "token 9")


def test_a_later_line_shows_that_one_before_it_was_accepted(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 6)
    journal = journal_of(state_path)
    lines = lines_of(journal)
    journal.write_bytes(b"".join(lines[:4]) + b"\0" * 900 + b"\n" + lines[6][:-20])
    state_path.unlink()
    refuses(state_path, "revision 6")


class Logs:
    """Step logs that show *token*, and count how often they are asked."""

    def __init__(self, token: int, *, has_ended: bool = False) -> None:
        self.trace, self.asked = ProgressMark(Path("a.log"), token, has_ended=has_ended), 0

    def __call__(self, run_id: str) -> Iterable[ProgressMark]:
        assert run_id
        self.asked += 1
        return (self.trace,)


def stamped(state_path: Path, logs: Logs) -> FileStore:
    store = FileStore(state_path, progress=logs)
    store.update(lambda _: None)
    return store


def test_older_copies_of_both_files_are_detected_before_any_write(tmp_path: Path) -> None:
    state_path = begun(tmp_path, 3)
    with pytest.raises(CorruptState, match=r"a\.log shows token 2"):
        stamped(state_path, Logs(2))
    # Whoever only reads holds no lock: a log may be newer than what was read.
    assert FileStore(state_path, progress=Logs(2)).view().head is not None
    assert diagnose(state_path, Logs(2)).action is Action.CHOOSE
    repair(state_path, Choice.JOURNAL, progress=Logs(2))
    stamped(state_path, Logs(2)).close()


def test_an_ended_attempt_whose_end_may_be_lost_is_not_repeated(
    tmp_path: Path,
) -> None:
    torn, zeroed = b'{"revision":4', b'{"revision":4\0\0\0"}\n'
    mine = this_process().pid
    unread = [(GONE, torn, True), (GONE, zeroed, True), (mine, torn, False), (GONE, b"", False)]
    heads = ("unreadable", "older")
    for (pid, behind, is_refused), left in product(unread, heads):
        state_path = begun(tmp_path / f"{pid}-{len(behind)}-{left}", 1)
        older = state_path.read_text()
        store = FileStore(state_path)
        hold(store, _owner(pid))
        store.close()
        state_path.write_text("{" if left == "unreadable" else older)
        with journal_of(state_path).open("ab") as file:
            file.write(behind)
        logs = Logs(1, has_ended=True)
        if is_refused:
            with pytest.raises(CorruptState, match="token 1 had ended"):
                stamped(state_path, logs)
            assert diagnose(state_path, logs).action is Action.CHOOSE
        else:
            stamped(state_path, logs).close()


def _owner(pid: int) -> Owner:
    owner = this_process()
    return owner if pid == owner.pid else owner.replace(pid=pid, pid_start=1)


@pytest.mark.parametrize("kind", ["status", "line"])
@pytest.mark.parametrize("is_head_there", [True, False])
def test_a_record_of_a_newer_version_is_never_dropped_as_damaged(
    tmp_path: Path, kind: str, is_head_there: bool
) -> None:
    state_path = begun(tmp_path, 3)
    journal = journal_of(state_path)
    *lines, last = lines_of(journal)
    record = json.loads(last)
    if kind == "status":
        record["head"]["status"] = "levitating"
    else:
        record["step_"] = record.pop("step")
    del record["checksum"]
    body = json.dumps(record).encode()[:-1]
    journal.write_bytes(b"".join(lines) + body + b',"checksum":"%s"}\n' % checksum(body).encode())
    if is_head_there:
        state_path.write_text(json.dumps(record["head"]))
    else:
        state_path.unlink()
    before = journal.read_bytes()
    for verb in (read_run, go_on, diagnose, repair):
        with pytest.raises(NewerSchema, match="this version"):
            verb(state_path)
    assert journal.read_bytes() == before
