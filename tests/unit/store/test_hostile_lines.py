"""JSON and journal lines with anything in them: read as they are, or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from sequencer.errors import CorruptState
from sequencer.history.facts import list_facts
from sequencer.model.whole_numbers import MAX_DIGITS
from sequencer.store.journal import decode, encode, scan
from sequencer.store.strictjson import MAX_DEPTH, parse_object
from tests.property.amounts import PART, for_all
from tests.property.json_values import flat, leaves, numbers, objects, oddities, pairs, texts


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
