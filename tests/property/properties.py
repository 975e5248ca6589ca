"""The hostile properties with many more examples than a push has time for."""

from __future__ import annotations

from pathlib import Path

from tests.long.report import Report, Size
from tests.long.tests_as_campaign import run_tests
from tests.property.amounts import FACTOR, TALLY

TIMES = 80
HOSTILE = (
    "tests/property",
    "tests/unit/engine/test_hostile_log_names.py",
    "tests/unit/engine/test_hostile_log_texts.py",
    "tests/unit/settings/test_hostile_grants.py",
    "tests/unit/store/test_hostile_lines.py",
    "tests/unit/workflows/test_hostile_prompts.py",
    "tests/unit/workflows/test_hostile_routes.py",
    "tests/unit/workflows/test_hostile_verdicts.py",
)
"""Where the hostile properties are: those of one reader are beside its other tests."""


def campaign(folder: Path, size: Size) -> Report:
    """Run the hostile tests, in the long form with *TIMES* as many examples."""
    tally = folder / "tally"
    tally.touch()
    chosen = ["--timeout=3000", *HOSTILE, "-k", "hostile or store_machine"]
    environment = {FACTOR: str(TIMES if size is Size.LONG else 1), TALLY: str(tally)}
    _, wrong = run_tests(folder, chosen, environment)
    return Report({"inputs": sum(map(int, tally.read_text().split()))}, wrong)
