from __future__ import annotations

import pytest

from sequencer.executors.protocol import Piece
from sequencer.plugins.posting.protocol import ActivityType
from sequencer.plugins.posting.text import HELD_BYTES, THOUGHT_CHARS, Gist
from tests.unit.posting.runs import REDACTION, SECRET


@pytest.fixture(name="gist")
def fixture_gist() -> Gist:
    gist = Gist(REDACTION, "main", 4, 2)
    assert taken(gist) == ("action", "started", "main")
    return gist


def taken(gist: Gist) -> tuple[str, ...] | None:
    told = gist.pop_newest()
    if told is None:
        return None
    assert (told.step, told.step_index, told.attempt) == ("main", 4, 2)
    if told.type is ActivityType.THOUGHT:
        return ("thought", told.body)
    parts = (told.action, told.parameter, told.result)
    return ("action", *(part for part in parts if part is not None))


def test_a_result_belongs_to_its_call(gist: Gist) -> None:
    gist.write(b'-> Bash command="make"\n', Piece.ACTION)
    assert taken(gist) == ("action", "Bash", 'command="make"')
    gist.write(b"<- 3 tests failed\n", Piece.ACTION)
    assert taken(gist) == ("action", "Bash", 'command="make"', "3 tests failed")


def test_unusual_action_lines_are_read(gist: Gist) -> None:
    gist.write(b"<- nobody called\n", Piece.ACTION)
    assert taken(gist) == ("action", "tool", "<- nobody called")
    gist.write(b"looked around\n-> List\n", Piece.ACTION)
    assert taken(gist) == ("action", "List", "")


@pytest.mark.parametrize("kind", [Piece.OUTPUT, Piece.ERROR, Piece.NOTICE])
def test_other_kinds_of_output_are_not_shared(gist: Gist, kind: Piece) -> None:
    assert not gist.write(b"text\n", kind)
    assert not gist.has_news


def test_only_the_first_write_wakes(gist: Gist) -> None:
    assert gist.write(b"a", Piece.THOUGHT)
    assert not gist.write(b"b", Piece.THOUGHT)
    gist.pop_newest()
    assert gist.write(b"c", Piece.THOUGHT)


@pytest.mark.parametrize("size", [1, 3, 7, 11])
def test_a_secret_in_pieces_is_never_posted(gist: Gist, size: int) -> None:
    data = f"the password is {SECRET}, so".encode()
    told = []
    for place in range(0, len(data), size):
        gist.write(data[place : place + size], Piece.THOUGHT)
        told.append(taken(gist))
    assert told[-1] == ("thought", "the password is [secret], so")
    assert not any(SECRET[:8] in text for one in told if one for text in one)


def test_a_secret_in_an_action_is_never_posted(gist: Gist) -> None:
    gist.write(f'-> Bash command="login {SECRET[:10]}'.encode(), Piece.ACTION)
    taken(gist)
    gist.write(f'{SECRET[10:]}"\n'.encode(), Piece.ACTION)
    assert taken(gist) == ("action", "Bash", 'command="login [secret]"')


def test_only_the_end_of_a_long_thought_is_posted(gist: Gist) -> None:
    gist.write(b"word " * 5000 + b"the end", Piece.THOUGHT)
    told = taken(gist)
    assert told is not None
    assert told[1].startswith("… word")
    assert told[1].endswith("the end")
    assert len(told[1]) <= THOUGHT_CHARS + 2


def test_a_flood_of_output_is_dropped_until_the_next_change(gist: Gist) -> None:
    for _ in range(10):
        gist.write(b"x" * (HELD_BYTES // 4), Piece.THOUGHT)
    assert gist.pop_newest() is None
    # It may have stopped in the middle of a secret.
    gist.write(SECRET[5:].encode() + b" and more\n", Piece.RESPONSE)
    assert gist.pop_newest() is None
    gist.write(b"-> Read a\n", Piece.ACTION)
    gist.write(b"I see\n", Piece.THOUGHT)
    assert taken(gist) == ("thought", "I see")
