from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sequencer.cli.views.states import ACTIVE, ASCII_MARKS, MARKS, shown, wrapped
from sequencer.cli.views.text import cut, width
from sequencer.engine.view import NodeState


def test_states_that_matter_look_different() -> None:
    told_apart = set(NodeState) - {NodeState.READY}
    assert len({MARKS[state] for state in told_apart}) == len(told_apart)
    assert len({ASCII_MARKS[state] for state in told_apart}) == len(told_apart)
    assert NodeState.RUNNING in ACTIVE
    assert NodeState.DONE not in ACTIVE


@given(st.text(), st.integers(0, 40))
def test_a_text_is_cut_to_what_fits(text: str, columns: int) -> None:
    found = cut(text, columns)
    assert width(found) <= columns
    assert found in {text, ""} or found.endswith("…")


@given(st.text(max_size=80), st.integers(2, 30), st.integers(1, 4))
def test_wrapping_loses_nothing_where_there_is_room(text: str, columns: int, lines: int) -> None:
    safe = shown(text)
    found = wrapped(safe, columns, lines)
    assert all(width(line) <= columns for line in found)
    assert len(found) <= lines
    whole = wrapped(safe, columns, 1000)
    assert "".join(whole).replace(" ", "") == "".join(safe.split())
    if len(whole) <= lines:
        assert found == whole
    else:
        assert found[-1].endswith("…")


@given(st.text())
def test_what_is_shown_is_one_line_for_xml_and_terminals(text: str) -> None:
    found = shown(text)
    assert found == shown(found)
    assert len(found.splitlines()) <= 1
    assert not set(found) & set("\x1b\u202e\u200f\ufffe\uffff\ud800\x00")
