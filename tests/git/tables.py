"""Tables of test cases: a few run on every push, all of them in a campaign."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.long.report import Report, Size
from tests.long.tests_as_campaign import run_tests

FILES = (
    *("unit/git/test_code_and_state", "git/test_hostile_branches", "git/test_lost_answers"),
    *("git/test_missing_objects", "git/test_remotes", "git/test_users_files"),
    "clocks/test_paid_calls",
)


def table(whole: Iterable[str], *on_push: str) -> list[pytest.ParameterSet]:
    """Return *whole* as parameters of a test; each is slow unless it is one of *on_push*."""
    cases = list(whole)
    assert set(on_push) <= set(cases), set(on_push) - set(cases)
    slow = pytest.mark.slow
    return [pytest.param(case, marks=() if case in on_push else slow) for case in cases]


def campaign(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; remotes, clones and branches in every state, paid calls."""
    choice = ["-m", ""] if size is Size.LONG else []
    count, wrong = run_tests(folder, [*choice, *(f"tests/{name}.py" for name in FILES)])
    return Report({"cases": count}, wrong)
