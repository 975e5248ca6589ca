from __future__ import annotations

import pytest

from sequencer.executors.protocol import Piece
from sequencer.plugins.posting.protocol import ActivityType
from sequencer.plugins.posting.text import HELD_BYTES, THOUGHT_CHARS, CurrentAction
from tests.unit.posting.runs import REDACTION, SECRET


@pytest.fixture(name="action")
def fixture_gist() -> CurrentAction:
    action = CurrentAction(REDACTION, "main", 4, 2)
    assert taken(action) == ("action", "started", "main")
    return action


def taken(action: CurrentAction) -> tuple[str, ...] | None:
    told = action.pop_newest()
    if told is None:
        return None
    assert (told.step, told.step_index, told.attempt) == ("main", 4, 2)
    if told.type is ActivityType.THOUGHT:
        return ("thought", told.body)
    parts = (told.action, told.parameter, told.result)
    return ("action", *(part for part in parts if part is not None))


def test_a_result_belongs_to_its_call(action: CurrentAction) -> None:
    action.write(b'-> Bash command="make"\n', Piece.ACTION)
    assert taken(action) == ("action", "Bash", 'command="make"')
    action.write(b"<- 3 tests failed\n", Piece.ACTION)
    assert taken(action) == ("action", "Bash", 'command="make"', "3 tests failed")


def test_unusual_action_lines_are_read(action: CurrentAction) -> None:
    action.write(b"<- nobody called\n", Piece.ACTION)
    assert taken(action) == ("action", "tool", "<- nobody called")
    action.write(b"looked around\n-> List\n", Piece.ACTION)
    assert taken(action) == ("action", "List", "")


@pytest.mark.parametrize("kind", [Piece.OUTPUT, Piece.ERROR, Piece.NOTICE])
def test_other_kinds_of_output_are_not_shared(action: CurrentAction, kind: Piece) -> None:
    assert not action.write(b"text\n", kind)
    assert not action.has_news


def test_only_the_first_write_wakes(action: CurrentAction) -> None:
    assert action.write(b"a", Piece.THOUGHT)
    assert not action.write(b"b", Piece.THOUGHT)
    action.pop_newest()
    assert action.write(b"c", Piece.THOUGHT)


@pytest.mark.parametrize("size", [1, 3, 7, 11])
def test_a_secret_in_pieces_is_never_posted(action: CurrentAction, size: int) -> None:
    data = f"the password is {SECRET}, so".encode()
    told = []
    for place in range(0, len(data), size):
        action.write(data[place : place + size], Piece.THOUGHT)
        told.append(taken(action))
    assert told[-1] == ("thought", "the password is [secret], so")
    assert not any(SECRET[:8] in text for one in told if one for text in one)


def test_a_secret_in_an_action_is_never_posted(action: CurrentAction) -> None:
    action.write(f'-> Bash command="login {SECRET[:10]}'.encode(), Piece.ACTION)
    taken(action)
    action.write(f'{SECRET[10:]}"\n'.encode(), Piece.ACTION)
    assert taken(action) == ("action", "Bash", 'command="login [secret]"')


def test_only_the_end_of_a_long_thought_is_posted(action: CurrentAction) -> None:
    action.write(b"word " * 5000 + b"the end", Piece.THOUGHT)
    told = taken(action)
    assert told is not None
    assert told[1].startswith("… word")
    assert told[1].endswith("the end")
    assert len(told[1]) <= THOUGHT_CHARS + 2


def test_a_flood_of_output_is_dropped_until_the_next_change(action: CurrentAction) -> None:
    for _ in range(10):
        action.write(b"x" * (HELD_BYTES // 4), Piece.THOUGHT)
    assert action.pop_newest() is None
    # It may have stopped in the middle of a secret.
    action.write(SECRET[5:].encode() + b" and more\n", Piece.RESPONSE)
    assert action.pop_newest() is None
    action.write(b"-> Read a\n", Piece.ACTION)
    action.write(b"I see\n", Piece.THOUGHT)
    assert taken(action) == ("thought", "I see")
