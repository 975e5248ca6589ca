"""`python -m tests.unit.engine.test_command_table` writes the table again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.unit.engine.command_table import COMMANDS, KINDS, STATES, rows

TABLE = Path(__file__).with_name("commands.txt")


CASES = [(kind, state) for kind in KINDS for state in STATES if (kind, state) != ("graph", "held")]


@pytest.mark.slow(sample=4)
@pytest.mark.parametrize(("kind", "state"), CASES)
def test_a_command_does_what_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, state: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    start = f"{kind} {state}: "
    expected = [row for row in TABLE.read_text().splitlines() if row.startswith(start)]
    assert len(expected) == len(COMMANDS)
    assert [*rows(tmp_path, kind, state)] == expected


if __name__ == "__main__":
    os.environ["SEQUENCER_TRUST"] = "all"
    with tempfile.TemporaryDirectory() as scratch, TABLE.open("w", encoding="utf-8") as table:
        for kind, state in CASES:
            for row in rows(Path(scratch) / f"{kind}-{state}", kind, state):
                print(row, file=table)
