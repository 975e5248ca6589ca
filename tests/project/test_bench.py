"""The bench runs, says what it promises, and judges; how fast anything is, it does not ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.child import CHECKOUT, Absent, Child, cpu_of_command, cpu_seconds_of, idle_percent
from bench.floor import RECORD_BYTES, Floor
from bench.machine import filesystem_of
from bench.measuring import Effort, compare, quartiles
from bench.peers import installing
from bench.project import Marks, make_project, no_op_run
from bench.report import as_json, summary, table
from bench.result import Row, absent, capped, compared, failures
from bench.rows import FAMILIES, Setting, measure
from bench.rows.handoff import SKIP, latencies
from sequencer import InvocationLimits, Mode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the floor is Linux's")

ROW_KEYS = {"name", "value", "unit", "ratio", "against", "bar", "ok"}
GATED = {
    "step CPU",
    "handoff",
    "handoff whole",
    "handoff idle",
    "growth CPU",
    "growth memory",
    "growth head",
    "growth journal",
    "resolve",
    "resolve far",
}
ELSEWHERE = {"fleet", "flow", "git", "team", "web"}
"""Long ones: most have tests of their own, all are in CI's bench."""


def run_bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", "--folder", str(folder), *arguments],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )


def row(ratio: float | None, bar: float | None = 1.5, name: str = "step") -> Row:
    return Row(name=name, value=2.0, unit="ms", against="floor", ratio=ratio, bar=bar)


# --- the whole program ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)  # it measures for 20 s, and for minutes on a busy machine
def test_quick_json_has_its_families_and_the_promised_shape(tmp_path: Path) -> None:
    families = [name for name in FAMILIES if name not in ELSEWHERE]
    how = ("--quick", "--json", "--seconds", "0.1", "--steps", "200")
    done = run_bench(tmp_path, *how, "--rows", families[0], *families[1:])
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["quick"] is True
    assert {"cpu", "cores", "load", "python", "filesystem", "at"} <= result["machine"].keys()
    found = {entry["name"]: entry for entry in result["rows"]}
    assert found.keys() >= GATED
    assert "tick" in found
    for entry in result["rows"]:
        assert entry.keys() >= ROW_KEYS
        is_judged = entry["ratio"] is not None and entry["bar"] is not None
        assert (entry["ok"] is not None) == is_judged
    for name in GATED:
        # Its size is no matter of a test: on a busy machine the next process may begin before
        # the one before it has noted the time at which it was done.
        assert isinstance(found[name]["ratio"], float), found[name]
        assert found[name]["bar"] is not None
    is_over = any(entry["ok"] is False for entry in result["rows"])
    assert done.returncode == int(is_over)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_row_is_refused_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    done = run_bench(tmp_path, "--rows", "speed")
    assert done.returncode == 2
    for family in FAMILIES:
        assert family in done.stderr


def test_a_missing_peer_is_a_row_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installing, "ENVIRONMENTS", tmp_path / "nowhere")
    place = tmp_path / "work"
    place.mkdir()
    setting = Setting(place, Effort(0.1, 300, 0.5), with_peers=True)
    found = {entry.name: entry for entry in measure("step", setting)}
    for peer in ("langgraph", "burr", "dbos", "huey"):
        missing = found[f"step vs {peer}"]
        assert missing.ratio is None
        assert "--install-peers" in missing.note
    assert found["step"].ratio is not None


# --- judging -------------------------------------------------------------------------


def test_a_ratio_over_its_bar_fails() -> None:
    over, within = row(1.6), row(1.5, name="other")
    assert (over.ok, within.ok) == (False, True)
    assert failures([over, within]) == [over]


@pytest.mark.parametrize("entry", [row(None), row(9.0, bar=None), absent("x", "y", "z")])
def test_a_row_without_a_ratio_or_bar_is_not_judged(entry: Row) -> None:
    assert entry.ok is None
    assert failures([entry]) == []


def test_a_cap_is_a_ratio_of_one() -> None:
    assert capped("head", 2048, 4096, "bytes").ratio == 0.5
    assert capped("head", 4097, 4096, "bytes").ok is False


def test_the_ratio_is_taken_per_round_and_survives_a_slow_stretch() -> None:
    # The machine is ten times slower in two of five rounds, for both sides.
    comparison = compare([2, 20, 2, 20, 2], [1, 10, 1, 10, 1])
    assert comparison.ratio == 2
    assert (comparison.low, comparison.high) == (2, 2)
    entry = compared("x", comparison, against="y", unit="ms", scale=1e3, bar=2.5)
    assert (entry.value, entry.against_value, entry.ok) == (2000, 1000, True)


def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # Neither their worst nor the ratio of the two medians (20) nor their mean.
    assert compare([2, 20, 20, 2, 200], [1, 10, 1, 1, 100]).ratio == 2
    assert quartiles([3.0]) == (3.0, 3.0)


def test_the_report_names_rows_over_their_bar_and_absent_ones() -> None:
    found = [row(1.6), row(1.0, name="fine"), absent("step vs burr", "burr", "no wheel")]
    said = summary(found, is_quick=False)
    assert "1 of 2 ratios" in said
    assert "over its bar: step" in said
    assert "no wheel" in said
    text = table(found)
    assert "OVER" in text
    assert "no wheel" in text
    assert json.loads(json.dumps(as_json(found, {}, is_quick=False)))["rows"][0]["ok"] is False


# --- what is measured ----------------------------------------------------------------


def test_the_floor_writes_as_much_as_a_step(tmp_path: Path) -> None:
    floor = Floor(tmp_path / "floor")
    wall, cpu = floor.block(5)
    floor.close()
    assert len(wall) == len(cpu) == 5
    assert min(wall) > 0
    assert (tmp_path / "floor" / "journal").stat().st_size == 5 * RECORD_BYTES
    assert (tmp_path / "floor" / "head").stat().st_size == RECORD_BYTES
    assert len(list((tmp_path / "floor" / "logs").iterdir())) == 5


def test_the_step_that_is_measured_is_a_real_one(tmp_path: Path) -> None:
    marks = Marks()
    run = no_op_run(make_project(tmp_path / "project"), marks)
    run.work(Mode.COMBINED, InvocationLimits(max_steps=5))
    head = run.head
    assert head is not None
    assert head.step_index == 5
    events = [(fact["event"], fact["step_index"]) for fact in run.history()]
    assert [index for event, index in events if event == "succeeded"] == [0, 1, 2, 3, 4]
    assert len(list((tmp_path / "project" / "logs").rglob("iter-*.log"))) == 5
    wall, cpu = marks.between_steps(skip=1)
    assert len(wall) == len(cpu) == 3
    assert min(wall) > 0


def test_latencies_are_measured_between_the_two_processes() -> None:
    count = SKIP + 3
    answers = [
        {
            "entered": {str(i): 10.0 * i for i in range(side, count, 2)},
            "left": {str(i): 10.0 * i + 1 for i in range(side, count, 2)},
            "accepted": {str(i): 10.0 * i + 4 for i in range(side, count, 2)},
        }
        for side in (0, 1)
    ]
    assert latencies(answers) == ([6.0, 6.0], [9.0, 9.0])


# --- other processes -----------------------------------------------------------------

ECHO = """
import sys
sys.path.insert(0, {checkout!r})
from bench.serving import serve
def begin():
    print("chatter on standard output")
    {begin}
    return {{"hello": 1}}, lambda request: {{"twice": request["count"] * 2}}
serve(begin)
"""


def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: str = "pass") -> str:
    (tmp_path / "echo_child.py").write_text(ECHO.format(checkout=str(CHECKOUT), begin=begin))
    monkeypatch.setattr("bench.child.CHECKOUT", tmp_path)
    return "echo_child"


def test_a_child_answers_whatever_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = child_module(tmp_path, monkeypatch)
    with Child(module, [], tmp_path / "log") as child:
        assert child.greeting == {"hello": 1}
        assert child.ask({"count": 21}) == {"twice": 42}
        pid = child.pid
    assert "chatter" in (tmp_path / "log").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_cannot_start_reports_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = child_module(tmp_path, monkeypatch, begin="import no_such_peer")
    with pytest.raises(Absent, match="no_such_peer"):
        Child(module, [], tmp_path / "log")


def test_cpu_of_a_command_counts_its_work_and_not_its_sleep(tmp_path: Path) -> None:
    sleeping = cpu_of_command([sys.executable, "-S", "-c", "import time; time.sleep(.3)"], tmp_path)
    busy = "import time\nend = time.process_time() + .4\nwhile time.process_time() < end:\n    pass"
    assert cpu_of_command([sys.executable, "-S", "-c", busy], tmp_path) >= 0.4
    assert sleeping < 0.3


def test_a_failed_command_is_not_a_measurement(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="ended with 3"):
        cpu_of_command([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
    with pytest.raises(Absent, match="No such file"):
        cpu_of_command([str(tmp_path / "nothing")], tmp_path)


@pytest.mark.slow
def test_idle_percent_distinguishes_a_sleeper_from_a_poller() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    poller = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 20
        while cpu_seconds_of(sleeper.pid) < 0.01 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        idle = idle_percent(sleeper.pid, 0.5)
        assert idle < 2
        # How much of a core a busy process gets is the machine's matter.
        assert idle_percent(poller.pid, 1.0) > idle
    finally:
        for process in (sleeper, poller):
            process.kill()
            process.wait()


# --- peers and the picture -----------------------------------------------------------


def test_each_peer_that_is_measured_is_in_the_requirements() -> None:
    required = installing.required()
    assert required["langgraph"] == ["langgraph", "langgraph-checkpoint-sqlite"]
    modules = (path.stem for path in (CHECKOUT / "bench" / "peers").glob("[!_]*_*.py"))
    assert {module.partition("_")[0] for module in modules} <= required.keys()
    assert {"doit", "luigi", "prefect", "matplotlib"} <= required.keys()


def test_the_file_system_of_a_folder_is_detected(tmp_path: Path) -> None:
    assert filesystem_of(Path("/proc")) == "proc"
    assert filesystem_of(tmp_path) != "unknown"
