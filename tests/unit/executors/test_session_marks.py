"""Session ids with facts: written, read back, and never trusted."""

from __future__ import annotations

import pytest

from sequencer.executors.client import number, split_mark


@pytest.mark.parametrize("mark", ["", "--yolo", "-x", "a b", "a/../b", "a\n", ";cost_usd=1", "é"])
def test_what_no_client_would_give_never_becomes_an_argument(mark: str) -> None:
    with pytest.raises(ValueError, match="is no session id"):
        split_mark(mark)


@pytest.mark.parametrize("value", ["-1", "x", "1e999x", "nan-"])
def test_facts_that_were_tampered_with_count_as_nothing(value: str) -> None:
    assert number({"cost_usd": value}, "cost_usd") == 0
