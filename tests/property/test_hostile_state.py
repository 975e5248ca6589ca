"""state.json and the journal with anything in them: believed, restored or refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from sequencer import FileStore, Head
from sequencer.errors import CorruptState, StateRefused
from sequencer.history.facts import list_facts
from sequencer.model.edits import STOPS
from sequencer.model.head import OWN_EXTRAS
from sequencer.model.whole_numbers import MAX_DIGITS
from sequencer.store.journal import decode, encode, scan
from sequencer.store.strictjson import MAX_DEPTH, parse_object
from tests.contract import store_cases as cases
from tests.property.amounts import PART, for_all, in_memory

HALF = PART // 2
"""For properties that are tried with a run that is claimed and one that is not."""

# --- what may stand in a file ------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 9)
leaves = (
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | texts
)


def pairs(inner: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[dict[str, Any]]:
    # Half the time of st.dictionaries, which looks for a new key where one came twice.
    return st.lists(st.tuples(texts, inner), max_size=most).map(dict)


# Spelled out, because st.recursive takes three times as long; deep ones are made elsewhere.
flat = leaves | st.lists(leaves, max_size=2) | pairs(leaves, 2)
values = leaves | st.lists(flat, max_size=2) | pairs(flat, 2)
objects = pairs(values, 3)
# Fragments that no writer of JSON makes.
oddities = st.sampled_from(
    ["NaN", "-Infinity", "1e999", "9" * 40, "[" * 70 + "]" * 70, '"\\ud800"', "01", "{", "", "\0"]
)


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


def ensure_believable(run: Files, state: bytes) -> None:
    """Check that *state* is refused, restored, or taken as the stop or note that it is."""
    head = opened(run, state, run.journal)
    if head is None or head == run.accepted:
        return
    written = json.loads(state)
    before, found = run.accepted.model_dump(mode="json"), head.model_dump(mode="json")
    assert head.revision == run.accepted.revision + 1
    for name in (before.keys() | found.keys()) - BY_WRITING:
        is_free = name not in Head.model_fields and name not in OWN_EXTRAS
        is_stop = name in STOPS and written.get("exit") is True
        can_be = (before.get(name), written.get(name)) if is_free or is_stop else (before[name],)
        assert found.get(name) in can_be, name


def test_any_object_as_the_head_is_handled_safely(files: Files) -> None:
    def check(content: object) -> None:
        ensure_believable(files, json.dumps(content).encode())

    for_all(check, values, examples=HALF)


def test_a_head_with_other_values_is_handled_safely(files: Files) -> None:
    names = st.sampled_from(sorted(files.content)) | texts
    small = st.sampled_from([0, 1, 2, 3, 4, True, 1.0, "1", 2**62, 2**63, -1, [], {}, ""])
    changes = st.lists(st.tuples(names, small | values), min_size=1, max_size=2).map(dict)

    def check(change: dict[str, object], lost: str | None) -> None:
        content = {k: v for k, v in (files.content | change).items() if k != lost}
        ensure_believable(files, json.dumps(content).encode())

    for_all(check, changes, st.none() | names, examples=HALF)


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


# --- JSON and journal lines --------------------------------------------------------


def strictly(text: str) -> dict[str, Any]:
    """Return what *text* says, by the standard library and the rules in plain words."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    def small(digits: str) -> int:
        if len(digits.lstrip("-")) > MAX_DIGITS:
            raise ValueError("too many digits")
        return int(digits)

    def number(name: str) -> float:
        if math.isfinite(float(name)):
            return float(name)
        raise ValueError(name)

    def depth(value: object) -> int:
        if not isinstance(value, (dict, list)):
            return 0
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(depth, inner), default=0)

    found = json.loads(
        text,
        object_pairs_hook=unique,
        parse_int=small,
        parse_float=number,
        parse_constant=number,
    )
    json.dumps(found, ensure_ascii=False).encode()
    if not isinstance(found, dict) or depth(found) > MAX_DEPTH:
        raise ValueError("no object, or too deep")
    return found


def read_by(reader: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return reader()
    except ValueError:
        return None


def test_the_strict_reader_matches_the_standard_one_except_for_refusals() -> None:
    def check(content: dict[str, object], odd: str, depth: int, at: int, indent: int) -> None:
        whole = json.dumps(content, ensure_ascii=bool(at % 2), indent=indent or None)
        assert parse_object(whole.encode()) == content
        nested = '{"a":' * depth + "1" + "}" * depth
        assert (read_by(lambda: parse_object(nested.encode())) is None) == (depth > MAX_DEPTH)
        place = at % (len(whole) + 1)
        twice = whole[:-1] + (", " if content else "") + f'"k": {odd}, "k": 1}}'
        assert read_by(lambda: parse_object(twice.encode())) is None
        for text in (whole[:place] + odd + whole[place:], whole[:place], whole.replace("1", odd)):
            mine = read_by(lambda text=text: parse_object(text.encode()))  # type: ignore[misc]
            assert mine == read_by(lambda text=text: strictly(text)), text  # type: ignore[misc]

    depths, ats = st.integers(1, 130), st.integers(0, 10_000)
    for_all(check, objects, oddities | texts, depths, ats, st.integers(0, 3), examples=PART)


facts = st.fixed_dictionaries(
    {
        "event": texts,
        "step": texts,
        "step_index": numbers,
        "token": numbers,
        "attempt": st.integers(0, 9),
        "outcome": st.none() | pairs(leaves, 2),
    }
)
records = st.tuples(texts, st.lists(facts, min_size=1, max_size=2), pairs(flat, 2))


def ensure_it_comes_back_whole(
    revision: int, record: tuple[str, list[dict[str, Any]], dict[str, Any]]
) -> None:
    at, told, head = record
    line = encode(revision, at, told, json.dumps(head).encode())
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = decode(line[:-1])
    assert found["head"] == head
    assert list_facts(found) == [{"revision": revision, "at": at, **fact} for fact in told]


def test_records_are_read_back_and_losing_and_torn_lines_change_no_winner() -> None:
    def check(made: list[Any], first: int, rubbish: list[tuple[int, str, int]]) -> None:
        ensure_it_comes_back_whole(first, made[0])

        def line_of(number: int, at: str) -> bytes:
            _, told, head = made[number]
            return encode(first + number, at, told, json.dumps(head).encode())

        lines = [line_of(number, made[number][0]) for number in range(len(made))]
        winners, mixed = list(lines), [[line] for line in lines]
        for place, kind, cut in rubbish:
            number = place % len(lines)
            loser = line_of(cut % (number + 1), "a loser")
            torn = lines[number][: cut % len(lines[number])]
            junk = {"loser": loser, "torn": torn + b"\n", "blank": b"\n", "raw": b"\0{x}\n"}
            mixed[number].append(junk[kind])
        data = b"".join(piece for group in mixed for piece in group)
        tail = lines[-1][:-1] if len(rubbish) % 2 else b""
        found = scan(data + tail, 0, first, "j")
        assert [record.line + b"\n" for record in found.winners] == winners
        assert all(
            data[record.offset : record.end] == record.line + b"\n" for record in found.winners
        )
        assert (found.is_torn, found.size) == (bool(tail), len(data + tail))
        lost = [piece for group in mixed for piece in group[1:] if piece != b"\n"]
        assert len(found.skipped) == len(lost) + bool(tail)
        if len(lines) > 2:
            with pytest.raises(CorruptState):
                scan(lines[0] + b"".join(lines[2:]), 0, first, "j")

    kinds = st.sampled_from(["loser", "torn", "blank", "raw"])
    rubbish = st.lists(st.tuples(st.integers(0, 9), kinds, st.integers(0, 10_000)), max_size=6)
    several = st.lists(records, min_size=1, max_size=3)
    for_all(check, several, st.integers(1, 2**63 - 9), rubbish, examples=PART)
