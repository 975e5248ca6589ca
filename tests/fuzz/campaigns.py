"""Fuzzing as campaigns: ten minutes of atheris a target, or some mutants of real files.

atheris is an extra of its own (``pip install -e '.[fuzz]'``), because there are wheels for
few versions of Python. Without it the long form tries nothing and says so.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tests.fuzz.seeds import ROOT, mutants, seeds, words
from tests.fuzz.targets import TARGETS
from tests.long.report import Report, Size

SECONDS = 600
MUTANTS = 1_000
LONGEST = 8_192
MISSING = "atheris is not installed, so nothing was fuzzed: pip install -e '.[fuzz]'"
_EXECUTED = re.compile(rb"stat::number_of_executed_units:\s*(\d+)")
_PEAK = re.compile(rb"stat::peak_rss_mb:\s*(\d+)")
_RAISED = re.compile(rb"=== Uncaught Python exception: ===\s*\n(.*)")


def fuzz(target: str, folder: Path, seconds: int) -> Report:
    """Run atheris on *target* for *seconds*."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for number, data in enumerate(seeds(target)):
        (corpus / f"seed-{number:03d}").write_bytes(data)
    lines = ("".join(f"\\x{byte:02x}" for byte in word) for word in words(target))
    (folder / "words").write_text("".join(f'"{line}"\n' for line in lines))
    command = [
        sys.executable, "-m", "tests.fuzz", target, str(corpus), f"-max_total_time={seconds}",
        f"-dict={folder / 'words'}", f"-artifact_prefix={folder}/broken-", f"-max_len={LONGEST}",
        "-print_final_stats=1", "-timeout=10", "-rss_limit_mb=1024", "-verbosity=0",
    ]  # fmt: skip
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=False, timeout=seconds + 300
    )
    said = ended.stdout + ended.stderr
    executed, peak = _EXECUTED.search(said), _PEAK.search(said)
    inputs = int(executed[1]) if executed else 0
    violations = [
        f"{target}: {raised_in(said)}: {base64.b64encode(path.read_bytes()).decode()}"
        for path in sorted(folder.glob("broken-*"))
    ]
    if ended.returncode != 0 and not violations:
        violations = [f"{target}: ended with {ended.returncode}: {said[-400:]!r}"]
    figures = {"inputs_per_s": inputs / seconds, "rss_mib": float(peak[1]) if peak else 0.0}
    return Report({"inputs": inputs}, tuple(violations), figures)


def raised_in(said: bytes) -> str:
    found = _RAISED.search(said)
    return found[1].decode("utf-8", "replace").strip() if found else "ended"


def mutate(target: str, count: int) -> Report:
    """Try *count* mutants of the seeds; each second's worth of input counts as broken."""
    violations = []
    slowest = 0.0
    with TARGETS[target]() as check:
        for data in mutants(target, count, seed=1):
            started = time.process_time()
            try:
                check(data)
            except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
                shown = base64.b64encode(data).decode()
                violations.append(f"{target}: {type(error).__name__}: {error}: {shown}")
            slowest = max(slowest, time.process_time() - started)
    if slowest > 1:
        violations.append(f"{target}: {slowest:.1f} s for one input")
    return Report({"inputs": count}, tuple(violations), {"s_max": slowest})


def _campaign(target: str, folder: Path, size: Size) -> Report:
    if size is Size.SHORT:
        return mutate(target, MUTANTS)
    if find_spec("atheris") is None:
        return Report({"inputs": 0}, notes=(MISSING,))
    return fuzz(target, folder, SECONDS)


def head(folder: Path, size: Size) -> Report:
    return _campaign("head", folder, size)


def journal(folder: Path, size: Size) -> Report:
    return _campaign("journal", folder, size)


def settings(folder: Path, size: Size) -> Report:
    return _campaign("settings", folder, size)


def prompt(folder: Path, size: Size) -> Report:
    return _campaign("prompt", folder, size)


def router(folder: Path, size: Size) -> Report:
    return _campaign("router", folder, size)
