"""The program that runs the campaigns: what it reports, and what it makes of a broken one."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.long import documents, samples
from tests.long.__main__ import CAMPAIGNS, ROOT, campaign, totals
from tests.long.report import Report, Size

PAGE = ROOT / "docs" / "protocol.md"
SAMPLES = {
    name: f"tests.long.samples:{name}"
    for name in ("holds", "breaks", "raises", "sticks", "vanishes")
}


@dataclass
class Ended:
    """What a run of the program said."""

    code: int
    output: str
    report: dict[str, Any]


def run(folder: Path, *names: str, arguments: tuple[str, ...] = ()) -> Ended:
    report = folder / "made" / "report.json"
    argv = [sys.executable, "-m", "tests.long", "--json", str(report), *arguments]
    if names:
        argv += ["--only", *(SAMPLES[name] for name in names)]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert report.exists(), ended.stderr
    return Ended(ended.returncode, ended.stdout, json.loads(report.read_text()))


def test_the_report_has_each_campaigns_result(tmp_path: Path) -> None:
    ended = run(tmp_path, "holds", "breaks", arguments=("--jobs", "1"))
    assert ended.code == 1
    assert [c["name"] for c in ended.report["campaigns"]] == [SAMPLES["holds"], SAMPLES["breaks"]]
    held, broken = ended.report["campaigns"]
    assert held["counts"] == {"rounds": 20}
    assert held["figures"] == {"longest_s": 0.5}
    assert held["violations"] == []
    assert broken["violations"] == ["seed 1: lost", "seed 2: doubled"]
    assert ended.report["counts"] == {"rounds": 21, "kills": 3}
    assert ended.report["violations"] == 2
    assert ended.report["size"] == "long"
    assert set(ended.report["machine"]) == {"platform", "processors", "python"}
    assert "VIOLATION seed 1: lost" in ended.output
    assert "2 campaigns of" in ended.output


def test_no_violations_give_exit_code_0(tmp_path: Path) -> None:
    ended = run(tmp_path, "holds", arguments=("--short",))
    assert (ended.code, ended.report["counts"]) == (0, {"rounds": 2})
    assert (ended.report["violations"], ended.report["size"]) == (0, "short")


@pytest.mark.parametrize(
    ("name", "words"), [("raises", "FileNotFoundError: no such file"), ("vanishes", "ended with 0")]
)
def test_a_broken_campaign_is_a_violation(name: str, words: str, tmp_path: Path) -> None:
    ended = run(tmp_path, name, "holds")
    assert ended.code == 1
    assert ended.report["violations"] == 1
    (violation,) = ended.report["campaigns"][0]["violations"]
    assert "the campaign itself ended with" in violation
    assert words in violation


def test_a_stuck_campaign_is_ended_and_is_a_violation(tmp_path: Path) -> None:
    ended = run(tmp_path, "sticks", "holds", arguments=("--limit", "3"))
    assert ended.code == 1
    stuck, held = ended.report["campaigns"]
    assert "the campaign itself ended with -9" in stuck["violations"][0]
    assert held["counts"] == {"rounds": 20}


def test_the_report_is_there_before_the_last_campaign_has_ended(tmp_path: Path) -> None:
    """Who ends the programme in between loses nothing of it, see --again."""
    report = tmp_path / "report.json"
    names = [SAMPLES["sticks"], SAMPLES["holds"]]
    argv = [sys.executable, "-m", "tests.long", "--json", str(report), "--jobs", "2"]
    program = subprocess.Popen([*argv, "--limit", "6", "--only", *names], cwd=ROOT)
    found: list[str] = []
    while not found and program.poll() is None:
        told = json.loads(report.read_text()) if report.exists() else {"campaigns": []}
        found = [one["name"] for one in told["campaigns"]]
    assert found == [SAMPLES["holds"]]
    assert program.wait(timeout=60) == 1


@pytest.mark.slow
def test_again_reruns_violated_and_missing_campaigns(tmp_path: Path) -> None:
    first = run(tmp_path, "holds", "breaks")
    report = tmp_path / "made" / "report.json"
    ended = run(tmp_path, "holds", "breaks", "raises", arguments=("--again", str(report)))
    assert [c["name"] for c in ended.report["campaigns"]] == [
        SAMPLES[name] for name in ("holds", "breaks", "raises")
    ]
    assert ended.report["campaigns"][0] == first.report["campaigns"][0]
    assert SAMPLES["holds"] not in ended.output
    assert ended.report["violations"] == 3
    refused = [sys.executable, "-m", "tests.long", "--short", "--again", str(report)]
    short = subprocess.run(refused, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "is of size long" in short.stderr


def test_an_unknown_name_lists_the_known_ones() -> None:
    argv = [sys.executable, "-m", "tests.long", "--only", "A2-kils"]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "'A2-kils' is none of " in ended.stderr
    assert "H-model" in ended.stderr


def test_the_sums_are_over_all_campaigns() -> None:
    report = {"counts": {"kills": 2}, "violations": ["a"]}
    other = {"counts": {"kills": 3, "inputs": 4}, "violations": []}
    assert totals([report, other]) == ({"kills": 5, "inputs": 4}, 1)


# --- the table in the documents ------------------------------------------------------------


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_campaign_has_a_description_and_is_in_the_table(name: str) -> None:
    function = campaign(name)
    assert list(inspect.signature(function).parameters) == ["folder", "size"]
    assert len(documents.told(function)) > 10
    rows = documents.rows_of(PAGE.read_text())
    assert name in rows, "python -m tests.long --list --docs docs/protocol.md"


def test_no_removed_campaign_is_in_the_table() -> None:
    assert documents.rows_of(PAGE.read_text()).keys() <= CAMPAIGNS.keys()


def test_a_campaign_is_described_by_its_first_line_or_its_modules() -> None:
    def refers(folder: Path, size: Size) -> Report:
        """See `Campaign`; the same, but slower."""
        raise NotImplementedError

    def silent(folder: Path, size: Size) -> Report:
        raise NotImplementedError

    assert documents.told(samples.holds) == "Everything holds"
    assert documents.told(refers) == "The same, but slower"
    assert documents.told(silent) == (__doc__ or "").partition("\n")[0].rstrip(".")


TEXT = f"before\n{documents.START}\nanything\n{documents.END}\nafter\n"
CALLED = {"B": samples.breaks, "A": samples.holds}


def test_a_run_fills_in_its_own_column() -> None:
    report = {"name": "A", "counts": {"kills": 20_000, "rounds": 3}, "violations": []}
    broken = {"name": "B", "counts": {}, "violations": ["lost"]}
    page = documents.rewritten(TEXT, CALLED, Size.LONG, [report, broken])
    assert documents.rows_of(page) == {
        "A": ["Everything holds", "-", "20,000 kills, 3 rounds"],
        "B": ["Two things / do not hold", "-", "-; **violations: 1**"],
    }
    again = documents.rewritten(page, CALLED, Size.SHORT, [{**report, "counts": {"kills": 5}}])
    assert documents.rows_of(again)["A"] == [
        "Everything holds",
        "5 kills",
        "20,000 kills, 3 rounds",
    ]
    assert (again.startswith("before\n"), again.endswith("\nafter\n")) == (True, True)
    assert documents.rewritten(again, CALLED, Size.SHORT) == again


def test_the_line_about_a_whole_run_stays_until_the_next(tmp_path: Path) -> None:
    page, machine = tmp_path / "page.md", {"platform": "x", "processors": 2, "python": "3.11"}
    page.write_text(TEXT)
    whole: dict[str, Any] = {
        "at": "2026-01-02T03:04:05+00:00",
        "size": "long",
        "minutes": 51.2,
        "machine": machine,
        "campaigns": [{"name": name, "counts": {"kills": 1}, "violations": []} for name in CALLED],
        "counts": {"kills": 2},
        "violations": 0,
    }
    documents.write(page, whole, CALLED)
    expected = (
        "\n\nLast long run: 2026-01-02, x, 2 processors, Python 3.11, 51 minutes together: "
        "2 kills. **Violations: 0.**\n<!--"
    )
    assert expected in page.read_text()
    documents.write(page, {**whole, "campaigns": whole["campaigns"][:1], "minutes": 1}, CALLED)
    documents.write(page, {**whole, "size": "short", "minutes": 1}, CALLED)
    assert expected in page.read_text()


def test_a_page_without_the_comments_is_left_alone() -> None:
    with pytest.raises(documents.NoPlace):
        documents.rewritten("text", CALLED, Size.LONG)


@pytest.mark.slow
def test_the_names_can_be_updated_without_a_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    ended = run(tmp_path, arguments=("--list", "--docs", str(page)))
    assert ended.code == 0
    assert documents.rows_of(page.read_text()).keys() == CAMPAIGNS.keys()
