"""Lines, checksums, and which of several lines with one revision counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import CorruptState, NewerSchema
from sequencer.store.journal import JournalFile, checksum, decode, encode, scan
from sequencer.store.strictjson import MAX_BYTES, MAX_DEPTH, is_deep, parse_object

FACT = {"event": "edited", "step": "s", "step_index": 0, "token": 0, "attempt": 0, "outcome": None}


def line(revision: int, note: str = "") -> bytes:
    head = json.dumps({"revision": revision, "note": note}).encode()
    return encode(revision, "2026-01-01T00:00:00Z", [FACT], head)


@given(st.data())
def test_any_damage_to_a_line_is_seen(data: st.DataObject) -> None:
    whole = line(3, "some text")[:-1]
    at = data.draw(st.integers(0, len(whole) * 8 - 1))
    flipped = bytearray(whole)
    flipped[at // 8] ^= 1 << (at % 8)
    with pytest.raises(ValueError, match=r"torn|damaged"):
        decode(bytes(flipped))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match=r"torn|damaged"):
        decode(whole[:cut])


@pytest.mark.parametrize(
    "change",
    [
        {"at": None}, {"at": 3}, {"revision": True}, {"revision": "1"}, {"event": None},
        {"event": ["x"]}, {"event": 3},
        {"token": None}, {"also": {}}, {"also": ["x"]}, {"also": [{"event": "x"}]},
        {"step": ["a"]}, {"step": 1}, {"step_index": "0"}, {"token": [1]},
        {"attempt": 1.5},
    ],
)  # fmt: skip
def test_a_sealed_line_without_required_fields_is_of_a_newer_version(
    change: dict[str, Any],
) -> None:
    body = json.loads(line(1)[:-1].rpartition(b',"checksum"')[0] + b"}") | change
    kept = {key: value for key, value in body.items() if value is not None or key not in change}
    start = json.dumps(kept).encode()[:-1]
    sealed = start + b',"checksum":"' + checksum(start).encode() + b'"}'
    with pytest.raises(NewerSchema, match="this version does not know it"):
        decode(sealed)


def test_a_sealed_line_that_is_not_a_record_is_refused() -> None:
    for head in (b"[]", b'"x"', b"{}"):
        sealed = encode(1, "", [FACT], head)[:-1]
        if head == b"{}":
            assert decode(sealed)
            continue
        with pytest.raises(NewerSchema, match="this version does not know it"):
            decode(sealed)


def test_the_first_line_with_a_revision_wins() -> None:
    data = line(1) + line(2, "first") + line(2, "second") + line(1) + line(3)
    found = scan(data, 0, 1, "j")
    assert [r.revision for r in found.winners] == [1, 2, 3]
    assert found.winners[1].data["head"]["note"] == "first"
    assert [reason for _, reason in found.skipped] == [
        "revision 2 was already taken",
        "revision 1 was already taken",
    ]
    assert [data[r.offset : r.end] for r in found.winners] == [line(1), line(2, "first"), line(3)]


def test_a_torn_line_is_skipped_and_reported() -> None:
    data = line(1) + line(2)[:-10]
    found = scan(data, 0, 1, "j")
    assert found.is_torn
    assert [r.revision for r in found.winners] == [1]
    closed = data + b"\n" + line(2, "again")
    found = scan(closed, 0, 1, "j")
    assert not found.is_torn
    assert [r.data["head"]["note"] for r in found.winners] == ["", "again"]


@pytest.mark.parametrize(
    ("revisions", "expected", "words"),
    [
        ((1, 3), 1, "revision 2 is missing"),
        ((1, 5), 1, "revisions 2 to 4"),
        ((2,), 1, "revision 1"),
    ],
)
def test_a_gap_is_refused(revisions: tuple[int, ...], expected: int, words: str) -> None:
    with pytest.raises(CorruptState, match=words) as caught:
        scan(b"".join(line(r) for r in revisions), 0, expected, "the journal")
    assert caught.value.where == "the journal"
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' appears twice"),
        (b'{"a": 12345678901234567890}', "20 digits"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "deep"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "deep"),
        (b"[]", "list"),
        (b"null", "NoneType"),
        (b"", "Expecting value"),
        (b"{} {}", "Extra data"),
        (b'{"a": "\xff"}', "decode"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"\\udfff": 1}', "surrogates not allowed"),
        (b"{" + b" " * MAX_BYTES + b"}", "more than"),
        (b"\xef\xbb\xbf{}", "Expecting value"),
        (b"<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> x\n", "Expecting value"),
    ],
)
def test_json_that_could_surprise_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_object(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": -9223372036854775808}', -(2**63)),
        (b'{"a": 1e3}', 1000.0),
        (b'{"a": "\\ud83d\\ude00"}', "😀"),
        (b'{"a": "\xc3\xa4"}', "ä"),
    ],
)
def test_json_that_is_fine(text: bytes, value: Any) -> None:
    assert parse_object(text) == {"a": value}


def test_the_maximum_depth_is_accepted_and_one_more_is_refused() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert parse_object(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="nested more than"):
        parse_object(nested(MAX_DEPTH + 1))


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3000), st.data())
def test_the_newest_records_are_the_tail_of_all_records(
    tmp_path_factory: pytest.TempPathFactory, older: int, newer: int, size: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    losers = data.draw(st.sets(st.integers(1, older + newer + 1)))

    def lines(first: int, last: int) -> bytes:
        found = ((line(n), line(n, "late") if n in losers else b"") for n in range(first, last))
        return b"".join(b"".join(pair) for pair in found)

    if older:
        (folder / "journal-000001.jsonl").write_bytes(lines(1, older + 1))
    (folder / "journal.jsonl").write_bytes(lines(older + 1, older + newer + 1) + b"torn")
    journal = JournalFile(folder, 0, 0)
    every = [record.line for record in journal.read_records()]
    found = [record.line for record in journal.read_newest(size)]
    assert found == every[len(every) - len(found) :]
    assert sum(map(len, found)) <= size
    if size >= sum(path.stat().st_size for path in folder.iterdir()):
        assert len(found) == max(len(every) - 1, 0)


def test_newest_records_after_a_gap_are_not_returned(tmp_path: Path) -> None:
    (tmp_path / "journal-000001.jsonl").write_bytes(line(1) + line(2))
    (tmp_path / "journal.jsonl").write_bytes(line(5) + line(6))
    assert JournalFile(tmp_path, 0, 0).read_newest(10_000) == ()


@given(
    st.lists(st.tuples(st.booleans(), st.text('[]{}"\\', max_size=4)), min_size=60, max_size=68),
    st.text('[]{}"\\', max_size=4),
)
def test_brackets_in_strings_do_not_count_as_depth(
    levels: list[tuple[bool, str]], text: str
) -> None:
    value: Any = text
    for is_array, note in levels:
        value = [note, value, note] if is_array else {note: value}
    for ensure_ascii in (True, False):
        data = json.dumps(value, ensure_ascii=ensure_ascii).encode()
        assert is_deep(data) == (len(levels) > MAX_DEPTH)
