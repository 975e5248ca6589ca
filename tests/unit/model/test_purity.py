"""The model decides without a clock: the time is always an argument."""

from __future__ import annotations

import re
from pathlib import Path

import sequencer.model

FOLDER = Path(sequencer.model.__file__).parent


def test_nothing_in_the_model_reads_the_clock() -> None:
    asks = re.compile(r"\.(?:now|utcnow|today)\(")
    assert [path.name for path in FOLDER.rglob("*.py") if asks.search(path.read_text())] == []
