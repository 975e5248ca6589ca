"""Tables of cases: some on every push, all of them as a campaign."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.long.report import Report, Size

ROOT = Path(__file__).parents[2]
FILES = (
    *("git/test_code_and_state", "git/test_hostile_branches", "git/test_lost_answers"),
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
    found = folder / "found.xml"
    names = [f"tests/{name}.py" for name in FILES]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={found}"]
    choice = ["-m", ""] if size is Size.LONG else []
    command = [*argv, *choice, f"--basetemp={folder / 'tests'}", *names]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    cases = list(ET.parse(found).iter("testcase"))  # noqa: S314 - written by pytest
    wrong = [
        f"{case.get('name')}: {(bad.get('message') or '')[:300]}"
        for case in cases
        for bad in (*case.iter("failure"), *case.iter("error"))
    ]
    if ended.returncode and not wrong:
        wrong.append(f"pytest ended with {ended.returncode}: {ended.stdout[-500:]}")
    return Report({"cases": len(cases)}, tuple(wrong))
