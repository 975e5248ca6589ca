"""state.json and the journal with anything in them: believed, restored or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from sequencer import FileStore, Head
from sequencer.errors import StateRefused
from tests.contract import store_cases as cases
from tests.property.amounts import PART, for_all, in_memory
from tests.property.json_values import oddities, texts, values

HALF = PART // 2
"""For properties that are tried with a run that is claimed and one that is not."""


@dataclass(frozen=True)
class Files:
    """A run at rest: its folder, the bytes of its two files, its accepted heads."""

    folder: Path
    state: bytes
    journal: bytes
    heads: list[Head]

    @property
    def accepted(self) -> Head:
        return self.heads[-1]

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.state)
        return found

    def put(self, state: bytes | None, journal: bytes) -> FileStore:
        """Write the two files into a folder that holds nothing else; open it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if state is not None:
            (self.folder / "state.json").write_bytes(state)
        (self.folder / "journal.jsonl").write_bytes(journal)
        return FileStore(self.folder / "state.json")


@pytest.fixture(params=["claimed", "at rest"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    with in_memory() as folder:
        yield made(folder, request.param)


def made(folder: Path, how: str) -> Files:
    path = folder / "made" / "state.json"
    store = FileStore(path)
    heads = [cases.begin(store)]
    token = cases.claim(store).token
    heads.append(store.update(lambda _: None))
    if how == "claimed":
        cases.commit_and_claim(store, token)
    else:
        cases.commit(store, token)
    heads.append(store.update(lambda _: None))
    store.close()
    journal = path.with_name("journal.jsonl").read_bytes()
    return Files(folder / "run", path.read_bytes(), journal, heads)


def opened(run: Files, state: bytes | None, journal: bytes) -> Head | None:
    """Return the head that a reader and then a writer find, or None if both refuse."""
    store = run.put(state, journal)
    seen: Head | None = None
    try:
        seen = store.view().head
        assert seen is not None
        head = store.update(lambda _: None)
    except StateRefused as refused:
        assert refused.exit_code == 3  # noqa: PT017 (only some inputs are refused)
        assert seen is None, "a reader believes what a writer refuses"
        kept = run.folder / "state.json"
        assert (kept.read_bytes() if kept.exists() else None) == state
        assert (run.folder / "journal.jsonl").read_bytes() == journal
        with pytest.raises(StateRefused):
            store.update(lambda _: None)
        return None
    finally:
        store.close()
    assert (seen.step_index, seen.token, seen.claims) == (head.step_index, head.token, head.claims)
    assert json.loads((run.folder / "state.json").read_bytes()) == head.model_dump(mode="json")
    return head


BY_WRITING = frozenset({"revision", "journal_offset", "last_update"})
"""What each transition changes, whatever it accepts."""
STOPS = frozenset({"exit", "exit_reason"})
"""What a person may change in the file to stop the run."""
SOMETIMES = frozenset({"moved", "told", "recent_costs"})
"""The program's fields that a head has only while they have a value; no notes of a person."""


def ensure_believable(run: Files, state: bytes) -> None:
    """Check that *state* is refused, restored, or taken as the stop or note that it is."""
    head = opened(run, state, run.journal)
    if head is None or head == run.accepted:
        return
    written = json.loads(state)
    before, found = run.accepted.model_dump(mode="json"), head.model_dump(mode="json")
    assert head.revision == run.accepted.revision + 1
    for name in (before.keys() | found.keys()) - BY_WRITING:
        is_free = name not in Head.model_fields and name not in SOMETIMES
        is_stop = name in STOPS and written.get("exit") is True
        can_be = (
            (before.get(name), written.get(name)) if is_free or is_stop else (before.get(name),)
        )
        assert found.get(name) in can_be, name


def test_any_object_as_the_head_is_handled_safely(files: Files) -> None:
    def check(content: object) -> None:
        ensure_believable(files, json.dumps(content).encode())

    for_all(check, values, examples=HALF)


def test_a_head_with_other_values_is_handled_safely(files: Files) -> None:
    names = st.sampled_from(sorted(SOMETIMES.union(files.content))) | texts
    small = st.sampled_from([0, 1, 2, 3, 4, True, 1.0, "1", 2**62, 2**63, -1, [], {}, ""])
    changes = st.lists(st.tuples(names, small | values), min_size=1, max_size=2).map(dict)

    # Beside a stop, which counts, other values must not count.
    stops = st.sampled_from([{}, {"exit": True}])

    def check(change: dict[str, object], stop: dict[str, object], lost: str | None) -> None:
        content = {k: v for k, v in (files.content | change | stop).items() if k != lost}
        ensure_believable(files, json.dumps(content).encode())

    for_all(check, changes, stops, st.none() | names, examples=HALF)


def test_a_head_that_is_not_valid_json_is_handled_safely(files: Files) -> None:
    names = sorted(files.content)

    def check(name: str, odd: str) -> None:
        mark = json.dumps(files.content | {name: "MARK"})
        ensure_believable(files, mark.replace('"MARK"', odd).encode())

    for_all(check, st.sampled_from([*names, "note"]), oddities, examples=HALF)


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """Return *data* with bits flipped, pieces cut out, doubled, moved or put in."""
    places = st.integers(0, len(data))

    def flip(bits: list[int]) -> bytes:
        flipped = bytearray(data)
        for bit in bits:
            flipped[bit // 8] ^= 1 << (bit % 8)
        return bytes(flipped)

    def splice(at: int, until: int, put: bytes) -> bytes:
        return data[: min(at, until)] + put + data[max(at, until) :]

    pieces = st.binary(max_size=6) | st.sampled_from([b"\n", b"\0" * 40, data, data[-300:], b"<<<"])
    return st.one_of(
        places.map(lambda end: data[:end]),
        st.lists(st.integers(0, len(data) * 8 - 1), min_size=1, max_size=3).map(flip),
        st.builds(splice, places, places, pieces),
        st.builds(lambda at, put: splice(at, at, put), places, pieces),
    )


def test_damaged_bytes_of_the_head_are_handled_safely(files: Files) -> None:
    def check(state: bytes) -> None:
        ensure_believable(files, state)

    for_all(check, damaged(files.state) | st.binary(max_size=40), examples=HALF)


def rearranged(data: bytes) -> st.SearchStrategy[bytes]:
    """Return the lines of *data*, some lost, some twice, in any order."""
    lines = data.splitlines(keepends=True)
    return st.lists(st.sampled_from(lines), max_size=6).map(b"".join)


def test_a_damaged_journal_next_to_an_intact_head_is_handled_safely(files: Files) -> None:
    def check(journal: bytes) -> None:
        assert opened(files, files.state, journal) in (None, files.accepted)

    for_all(check, damaged(files.journal) | rearranged(files.journal), examples=HALF)


def test_a_damaged_journal_alone_gives_only_what_was_accepted(files: Files) -> None:
    def check(journal: bytes) -> None:
        (store := files.put(None, journal)).close()
        try:
            head = store.view().head
        except StateRefused as refused:
            assert refused.exit_code == 3  # noqa: PT017 (only some inputs are refused)
            return
        # A first line that was never finished is a run that never began.
        assert head in files.heads or (head is None and b"\n" not in journal)

    for_all(check, damaged(files.journal) | rearranged(files.journal), examples=HALF)
