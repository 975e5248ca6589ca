"""``python -m tests.long``: every campaign of faults, and a report with all its figures.

``--only NAME…`` runs some, ``--short`` what every push runs, ``--json FILE`` writes the
report for programs, ``--docs FILE`` the figures into a page. Campaigns are processes of their
own, two at a time, one a processor; those that fill every processor go first, one by one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.long import documents
from tests.long.report import Campaign, Report, Size
from tests.scratch_folders import scratch_folder

ROOT = Path(__file__).parents[2]
LIMIT_S = 3_000.0
"""A campaign that takes longer is taken for stuck."""
CAMPAIGNS: dict[str, str] = {
    "C11-four-weeks": "tests.clocks.four_weeks:campaign",
    "I-hostile-clone": "tests.boundary.hostile_clone:campaign",
    "I-lying-agent": "tests.boundary.lying_agent:campaign",
    "I-linked-folders": "tests.boundary.linked_folders:campaign",
    "A2-random-kills": "tests.concurrency.herding:random_kills",
    "A1-command-points": "tests.concurrency.command_points:campaign",
    "A1-crash-points": "tests.concurrency.crash_sweep:crash_points",
    "A-flow-kills": "tests.concurrency.flow_kills:campaign",
    "A-flow-points": "tests.concurrency.flow_points:campaign",
    "A-schedule-points": "tests.concurrency.schedule_points:campaign",
    "A1-kernel": "tests.concurrency.crash_sweep:kernel",
    "A3-killed-holders": "tests.concurrency.take_over:killed_holders",
    "A3-out-of-reach": "tests.concurrency.take_over:out_of_reach",
    "A3-asleep": "tests.concurrency.take_over:asleep",
    "A5-herd": "tests.concurrency.turns:herd",
    "B9-lock-deleted": "tests.concurrency.herding:lock_deleted",
    "D12-clones": "tests.git.racing:clones",
    "D12-cut-lines": "tests.git.racing:cut_lines",
    "D-git-kills": "tests.git.kills:random_kills",
    "D13-remotes": "tests.git.tables:campaign",
    "D-git-points": "tests.git.kills:crash_points",
    "D14-partition": "tests.git.partition:campaign",
    "H-model": "tests.model.campaign:campaign",
    "B10-power-loss": "tests.power.campaign:campaign",
    "G-fuzz-head": "tests.fuzz.campaigns:head",
    "G-fuzz-settings": "tests.fuzz.campaigns:settings",
    "G-fuzz-prompt": "tests.fuzz.campaigns:prompt",
    "G-fuzz-router": "tests.fuzz.campaigns:router",
    "G-fuzz-journal": "tests.fuzz.campaigns:journal",
    "G-properties": "tests.property.properties:campaign",
    "F18-odd-bytes": "tests.concurrency.odd_bytes:campaign",
    "F17-floods": "tests.concurrency.floods:campaign",
    "G29-secrets": "tests.property.spilt_secrets:campaign",
    "I-overlaps": "tests.concurrency.overlaps:campaign",
    "I-shortages": "tests.concurrency.shortages:campaign",
    "F19-orphans": "tests.concurrency.stubborn_agents:orphans",
    "F16-stubborn": "tests.concurrency.stubborn_agents:stubborn",
    "F20-ends": "tests.concurrency.odd_ends:campaign",
    "B7-damage-seen": "tests.storage.damage_seen:campaign",
    "B8-full-disk": "tests.storage.full_disk:campaign",
    "I-taken-back": "tests.storage.taken_back:campaign",
    "I-damage-in-pairs": "tests.storage.pairs:campaign",
    "B7-damaged-heads": "tests.storage.damage:heads",
    "B7-damaged-journals": "tests.storage.damage:journals",
    "B8-refused-writes": "tests.storage.refused_writes:campaign",
    "B8-refused-calls": "tests.storage.refused_calls:campaign",
    "B8-lost-folder": "tests.storage.lost_folder:campaign",
    "T-workers": "tests.fleet.campaigns:workers",
    "T-freezes": "tests.fleet.campaigns:freezes",
    "T-servers": "tests.fleet.campaigns:servers",
    "T-long-run": "tests.fleet.endurance:long_run",
    "T-hung-agents": "tests.fleet.endurance:hung_agents",
    "T-secrets": "tests.fleet.canaries:campaign",
    "T-chance": "tests.fleet.chance:campaign",
    "T-unknown": "tests.fleet.unknown:campaign",
    "T-cables": "tests.fleet.cables:campaign",
    "C11-clocks": "tests.clocks.clocks:campaign",
    "C11-cron-day": "tests.clocks.cron_day:campaign",
    "C11-schedules": "tests.clocks.schedule_clocks:campaign",
}
"""Where each campaign is, the slowest first, so that none is left alone at the end."""
ALONE = frozenset({"A2-random-kills", "B9-lock-deleted"})
"""Herds of processes: beside them nothing that is timed would be measured."""


def campaign(name: str) -> Campaign:
    """Return the campaign called *name*."""
    module, function = CAMPAIGNS.get(name, name).split(":")
    found: Campaign = getattr(import_module(module), function)
    return found


def in_own_process(name: str, size: Size, log: Path, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run the campaign called *name* beside its *log*; return its report, name and seconds."""
    started = time.monotonic()
    command = [sys.executable, "-m", "tests.long", "--one", name, "--size", size]
    command += ["--within", str(log.parent)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
        )
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            # A stuck process is a finding like any other, and no reason to lose the rest.
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
    seconds = round(time.monotonic() - started, 1)
    report = last_line(printed)
    if process.returncode != 0 or report is None:
        words = log.read_text(errors="replace").strip().splitlines()[-12:]
        broken = f"the campaign itself ended with {process.returncode}: " + " | ".join(words)
        return {"name": name, "seconds": seconds, **asdict(Report({}, (broken,)))}
    return {"name": name, "seconds": seconds, **report}


def last_line(output: bytes) -> dict[str, Any] | None:
    """Return the report that a campaign's process printed last, if it is one."""
    try:
        report = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield what a person reads about one campaign."""
    tried = ", ".join(f"{count:,} {what}" for what, count in report["counts"].items())
    figures = ", ".join(f"{what} {value:g}" for what, value in report["figures"].items())
    number = len(report["violations"])
    told = "; ".join(part for part in (tried, figures) if part)
    yield f"{report['name']:28} {report['seconds']:8.1f} s  violations: {number}  {told}"
    for note in report["notes"]:
        yield f"    {note}"
    for violation in report["violations"][:20]:
        yield f"    VIOLATION {violation}"


def totals(reports: Iterable[dict[str, Any]]) -> tuple[dict[str, int], int]:
    """Return the sums of all counts, and the number of violations."""
    counts: Counter[str] = Counter()
    violations = 0
    for report in reports:
        counts.update(report["counts"])
        violations += len(report["violations"])
    return dict(counts), violations


def run_all(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Run the campaigns that are *given*; yield the report of each as it ends."""
    size = Size.SHORT if given.short else Size.LONG
    names = [] if given.list else given.only

    def run(name: str) -> dict[str, Any]:
        return in_own_process(name, size, folder / f"{name}.log", given.limit)

    yield from (run(name) for name in names if name in ALONE)
    with ThreadPoolExecutor(given.jobs) as pool:
        begun = [pool.submit(run, name) for name in names if name not in ALONE]
        try:
            yield from (one.result() for one in as_completed(begun))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def known(name: str) -> str:
    """Return *name* if it is a campaign, or a place such as ``tests.some.module:function``."""
    if name not in CAMPAIGNS and ":" not in name:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(CAMPAIGNS)}")
    return name


def kept(report: Path, names: Iterable[str], size: Size) -> list[dict[str, Any]]:
    """Return what *report* says about *names* without a violation, for campaigns of *size*."""
    found = json.loads(report.read_text(encoding="utf-8"))
    if found["size"] != size:
        raise SystemExit(f"{report} is of size {found['size']}, not {size}")
    wanted = set(names)
    return [
        campaign
        for campaign in found["campaigns"]
        if campaign["name"] in wanted and not campaign["violations"]
    ]


def arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.long", description=__doc__)
    parser.add_argument("--only", nargs="+", type=known, metavar="NAME", default=list(CAMPAIGNS))
    parser.add_argument("--short", action="store_true", help="what every push runs")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="for each campaign"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument(
        "--again",
        type=Path,
        metavar="FILE",
        help="run what FILE, a report of --json, has not or has violations of; keep the rest of it",
    )
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--list", action="store_true", help="run nothing; bring the names on the page up to date"
    )
    parser.add_argument("--one", type=known, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=Size, default=Size.LONG, help=argparse.SUPPRESS)
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def whole_report(reports: list[dict[str, Any]], size: Size) -> dict[str, Any]:
    """Return what ``--json`` writes."""
    counts, violations = totals(reports)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "size": size,
        "minutes": round(sum(report["seconds"] for report in reports) / 60, 1),
        "machine": {
            "platform": platform.platform(),
            "processors": os.cpu_count(),
            "python": platform.python_version(),
        },
        "campaigns": reports,
        "counts": counts,
        "violations": violations,
    }


def save(file: Path | None, whole: dict[str, Any]) -> None:
    """Write the report *whole* to *file*, if one was asked for."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.new")
        unfinished.write_text(json.dumps(whole, indent=1) + "\n")
        unfinished.replace(file)


def main() -> int:
    """Return 0 if nothing was violated."""
    given = arguments()
    os.environ["SEQUENCER_TRUST"] = "all"
    with scratch_folder(given.within) as folder:
        if given.one:
            # Commands record known runs there; campaigns must not see each other's.
            os.environ["XDG_STATE_HOME"] = str(folder / "user-state")
            one = campaign(given.one)
            # Most campaigns fork: what is never collected is never copied into a fork either.
            gc.collect()
            gc.freeze()
            print(json.dumps(asdict(one(folder, given.size))))
            return 0
        size = Size.SHORT if given.short else Size.LONG
        before = kept(given.again, given.only, size) if given.again else []
        done = {report["name"] for report in before}
        order = {name: place for place, name in enumerate(given.only)}
        given.only = [name for name in given.only if name not in done]
        reports = list(before)
        save(given.json, whole_report(reports, size))
        for report in run_all(given, folder):
            print("\n".join(lines(report)), flush=True)
            reports = sorted([*reports, report], key=lambda one: order[one["name"]])
            # Who ends the programme here continues with --again.
            save(given.json, whole_report(reports, size))
    whole = whole_report(reports, size)
    print("\n" + ", ".join(f"{what}: {count:,}" for what, count in whole["counts"].items()))
    print(
        f"{len(reports)} campaigns of {whole['minutes']:.1f} minutes together, "
        f"violations: {whole['violations']}"
    )
    if given.docs:
        documents.write(given.docs, whole, {name: campaign(name) for name in CAMPAIGNS})
    return 1 if whole["violations"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
