"""The hostile properties with many more examples than a push has time for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.long.report import Report, Size
from tests.property.amounts import FACTOR, TALLY

ROOT = Path(__file__).parents[2]
TIMES = 80
_FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
_EXAMPLE = re.compile(r"^E +(Failing test case: .*(?:\n^E .*){0,8})", re.MULTILINE)


def campaign(folder: Path, size: Size) -> Report:
    """Run the tests of this folder, in the long form with *TIMES* as many examples."""
    tally = folder / "tally"
    tally.touch()
    times = TIMES if size is Size.LONG else 1
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=3000",
         f"--basetemp={folder / 'tests'}", "tests/property", "-k", "hostile or store_machine"],
        cwd=ROOT,
        env={**os.environ, FACTOR: str(times), TALLY: str(tally)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    examples = [found.replace("\nE ", "") for found in _EXAMPLE.findall(ended.stdout)]
    violations = _FAILED.findall(ended.stdout) + examples
    if ended.returncode != 0 and not violations:
        violations = [f"pytest ended with {ended.returncode}: {ended.stdout[-500:]!r}"]
    inputs = sum(map(int, tally.read_text().split()))
    return Report({"inputs": inputs}, tuple(violations))
