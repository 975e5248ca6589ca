"""Tables of cases: the telling ones on every push, the whole of them as a campaign."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.long.report import Report, Size

ROOT = Path(__file__).parents[2]
WHOLE = "SEQUENCER_WHOLE_TABLES"
FILES = (
    *("git/test_code_and_state", "git/test_hostile_branches", "git/test_lost_answers"),
    *("git/test_remotes", "git/test_users_files", "clocks/test_paid_calls"),
)


def table(whole: Iterable[str], *usual: str) -> list[str]:
    """Return the cases of *whole* that are tried on every push, or all in the campaign."""
    cases = list(whole)
    assert set(usual) <= set(cases), set(usual) - set(cases)
    return cases if os.environ.get(WHOLE) else list(usual)


def campaign(folder: Path, size: Size) -> Report:
    """See `tests.long.report.Campaign`; remotes, clones and branches in every state, paid calls."""
    found = folder / "found.xml"
    names = [f"tests/{name}.py" for name in FILES]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={found}"]
    environment = {**os.environ, **({WHOLE: "1"} if size is Size.LONG else {})}
    command = [*argv, f"--basetemp={folder / 'tests'}", *names]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    cases = list(ET.parse(found).iter("testcase"))  # noqa: S314 - written by pytest
    wrong = [
        f"{case.get('name')}: {(bad.get('message') or '')[:300]}"
        for case in cases
        for bad in (*case.iter("failure"), *case.iter("error"))
    ]
    if ended.returncode and not wrong:
        wrong.append(f"pytest ended with {ended.returncode}: {ended.stdout[-500:]}")
    return Report({"cases": len(cases)}, tuple(wrong))
