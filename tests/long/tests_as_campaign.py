"""Runs tests as a campaign: the same files as on a push, with more cases or more examples."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
SHOWN_CHARS = 3000
"""Length of what a violation quotes of a failed test: enough for the example that failed."""


def run_tests(
    folder: Path, arguments: Iterable[str], environment: Mapping[str, str] | None = None
) -> tuple[int, tuple[str, ...]]:
    """Run pytest with *arguments* and return the number of tests, and what failed and why.

    What it writes is below *folder*; *environment* is added to this process's.
    """
    found = folder / "found.xml"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={found}"]
    ended = subprocess.run(
        [*argv, f"--basetemp={folder / 'tests'}", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    cases = list(ET.parse(found).iter("testcase")) if found.exists() else []  # noqa: S314 - pytest's
    wrong = [
        f"{case.get('classname')}::{case.get('name')}: {_explain(bad)}"
        for case in cases
        for bad in (*case.iter("failure"), *case.iter("error"))
    ]
    if ended.returncode and not wrong:
        wrong.append(f"pytest ended with {ended.returncode}: {ended.stdout[-500:]!r}")
    return len(cases), tuple(wrong)


def _explain(failure: ET.Element) -> str:
    """Return why a test failed, on one line: the lines that pytest marks as the error."""
    lines = [line[1:].strip() for line in (failure.text or "").splitlines() if line[:1] == "E"]
    return " | ".join(lines or [failure.get("message") or ""])[:SHOWN_CHARS]
