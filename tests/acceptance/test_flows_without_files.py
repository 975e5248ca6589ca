"""Runs of flowcharts whose files are lost: what each verb says, and the ways out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import launched, until
from tests.acceptance.flow_projects import as_json, asked, cli, make_project, write_flow

CHART = "  s --> a & b --> j"
HOLDING = """\
import os, sys, time
sys.stdin.read()
while os.path.exists("hold"):
    time.sleep(0.02)
"""
"""An agent that works for as long as the file ``hold`` is there."""
SAID = {name: f"Say {name}" for name in ("s", "a", "b", "j")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


@pytest.fixture
def begun(project: Path) -> Path:
    """Return a project whose run ``review`` waits for an answer."""
    assert cli(project, "run", "flows/review.md").returncode == 4
    return project


@pytest.fixture
def in_documents(project: Path) -> tuple[Path, Path]:
    """Return such a project, and the document that has the run's marking."""
    flow = project / "flows/review.md"
    # A marking of so many nodes has no place in the head.
    marks = " & ".join(f"m{number}((Mark {number}))" for number in range(40))
    flow.write_text(flow.read_text().replace("draft[Draft]", f"draft[Draft] --> {marks}\n  draft"))
    assert cli(project, "run", "flows/review.md").returncode == 4
    return project, project / "sync/runs/review" / str(head(project)["flow"]["base"])


def head(project: Path, run: str = "review") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project / "sync/runs" / run / "state.json").read_text())
    return found


def refused(project: Path, *arguments: str, code: int = 3) -> str:
    ended = cli(project, *arguments)
    assert ended.returncode == code, (arguments, ended.stdout, ended.stderr)
    return ended.stderr + ended.stdout


# --- a healthy run -------------------------------------------------------------------------


def test_a_run_of_parallel_nodes_is_one_history(project: Path) -> None:
    write_flow(project, "par", CHART, **SAID)
    assert cli(project, "run", "par").returncode == 0
    checked = cli(project, "--run", "par", "check")
    assert checked.returncode == 0
    assert checked.stdout.splitlines()[-1] == "nothing is wrong"
    repaired = cli(project, "--run", "par", "repair")
    assert repaired.returncode == 0
    assert "two histories" not in repaired.stdout


@pytest.mark.slow
def test_a_run_with_failures_answers_and_a_retry_has_one_history(project: Path) -> None:
    write_flow(project, "odd", f"{CHART}\n  s --> h{{{{H}}}} --> j", **{**SAID, "b": "please fail"})
    assert cli(project, "run", "odd").returncode == 1
    assert cli(project, "--run", "odd", "retry").returncode == 0
    assert cli(project, "run", "odd").returncode == 1
    write_flow(project, "odd", f"{CHART}\n  s --> h{{{{H}}}} --> j", **SAID)
    assert cli(project, "--run", "odd", "retry").returncode == 0
    assert cli(project, "run", "odd").returncode == 4
    assert cli(project, "answer", "h", "yes").returncode == 0
    assert cli(project, "run", "odd").returncode == 0
    last = cli(project, "--run", "odd", "check").stdout.splitlines()[-1]
    assert last == "nothing is wrong"


# --- flow.json ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["run", "status", "inbox", "check"])
def test_a_run_without_its_source_names_the_missing_file(begun: Path, verb: str) -> None:
    path = begun / "sync/runs/review/flow.json"
    path.unlink()
    if verb == "inbox":
        ended = cli(begun, verb)
        assert (ended.returncode, ended.stderr) == (0, "")
        said = ended.stdout
        assert "review: can't be read" in said
    else:
        said = refused(begun, "--run", "review", verb)
    assert f"{path.relative_to(begun)}: is missing" in said
    assert "restore the file" in said
    assert "sequencer --run review reset --yes --workflow WORKFLOW" in said
    assert f"remove {path.parent.relative_to(begun)}" in said


def test_starting_from_the_file_also_names_the_missing_source(begun: Path) -> None:
    path = begun / "sync/runs/review/flow.json"
    path.unlink()
    assert f"{path.relative_to(begun)}: is missing" in refused(begun, "run", "flows/review.md")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("loss", ["flow.json", "torn flow.json", "review.md"])
def test_a_reset_to_another_workflow_recovers_a_lost_one(begun: Path, loss: str) -> None:
    source = begun / "sync/runs/review/flow.json"
    if loss == "review.md":
        (begun / "flows/review.md").unlink()
    elif loss == "flow.json":
        source.unlink()
    else:
        source.write_text("{")
    refused(begun, "--run", "review", "reset", "--yes", code=2 if loss == "review.md" else 3)
    ended = cli(begun, "--run", "review", "reset", "--yes", "--workflow", "standard")
    assert ended.returncode == 0, ended.stderr
    assert head(begun)["workflow_name"] == "standard"
    assert head(begun).get("flow") is None
    # What is left of the old run does not count any more.
    shown = cli(begun, "--run", "review", "plan", "--json")
    assert shown.returncode == 0, shown.stderr


def test_a_reset_to_a_configured_flow_has_its_own_source(begun: Path) -> None:
    with (begun / "orchestration.yaml").open("a") as file:
        file.write("workflows: {other: flows/other.md}\n")
    write_flow(begun, "other", CHART, **SAID)
    (begun / "flows/review.md").unlink()
    ended = cli(begun, "--run", "review", "reset", "--yes", "--workflow", "other")
    assert ended.returncode == 0, ended.stderr
    assert cli(begun, "--run", "review", "run").returncode == 0
    assert asked(begun)[-1] == "j: Say j"


def test_a_refused_reset_leaves_the_source_alone(begun: Path) -> None:
    (begun / "agent.py").write_text(HOLDING)
    (begun / "hold").touch()
    assert cli(begun, "answer", "fine", "not yet").returncode == 0
    with launched(begun, "run", "review") as process:
        try:
            until(lambda: [claim["step"] for claim in head(begun)["claims"]] == ["note"])
            source = begun / "sync/runs/review/flow.json"
            before = source.read_bytes()
            flow = begun / "flows/review.md"
            flow.write_text(flow.read_text().replace("publish & note --> done", "publish --> done"))
            assert "reset" in refused(begun, "--run", "review", "reset", "--yes")
            assert source.read_bytes() == before
        finally:
            (begun / "hold").unlink()
            process.wait(30)


def test_a_file_that_moved_is_named(begun: Path) -> None:
    (begun / "flows/review.md").rename(begun / "flows/new.md")
    said = refused(begun, "run", "flows/new.md")
    assert "it was started from flows/review.md" in said
    said = refused(begun, "--run", "review", "run", code=2)
    assert "error: flows/review.md: the workflow's file is missing" in said
    assert "sequencer --run review reset" in said


# --- the marking's documents -------------------------------------------------------------


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("spoil", [b"", b'{"marking":{}}', None])
def test_every_command_reports_a_lost_marking(
    in_documents: tuple[Path, Path], spoil: bytes | None
) -> None:
    project, path = in_documents
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil)
    for verb in ("check", "repair"):
        said = refused(project, "--run", "review", verb)
        assert str(path.relative_to(project)) in said
        assert "nothing needs repair" not in said
    assert "restore the file, or start over with 'sequencer --run review reset'" in said
    assert path.name in refused(project, "--run", "review", "repair", "--apply")
    shown = cli(project, "plan", "flows/review.md")
    assert (shown.returncode, shown.stdout) == (3, "")
    assert path.name in shown.stderr
    (needed,) = as_json(cli(project, "inbox", "--json"))
    assert (needed["run"], needed["need"]) == ("review", "unreadable")
    assert path.name in needed["text"]
    found = as_json(cli(project, "--run", "review", "repair", "--json"))["documents"]
    assert [entry["path"] for entry in found] == [str(path)]


def test_a_reset_recovers_from_a_lost_marking(in_documents: tuple[Path, Path]) -> None:
    project, path = in_documents
    path.unlink()
    assert cli(project, "--run", "review", "reset", "--yes").returncode == 0
    assert cli(project, "--run", "review", "check").returncode == 0
    assert cli(project, "run", "review").returncode == 4


def test_a_whole_marking_is_no_error(in_documents: tuple[Path, Path]) -> None:
    project, path = in_documents
    assert path.is_file()
    last = cli(project, "--run", "review", "check").stdout.splitlines()[-1]
    assert last == "nothing is wrong"
    assert cli(project, "--run", "review", "repair").returncode == 0


# --- what is to be typed -----------------------------------------------------------------


def test_hints_name_the_run(begun: Path) -> None:
    path = begun / "flows/review.md"
    path.write_text(path.read_text().replace("publish & note --> done", "publish --> done"))
    said = refused(begun, "run", "flows/review.md")
    assert "'sequencer --run review adopt' continues" in said
    assert "'sequencer --run review reset' starts over" in said


def test_retry_reports_the_status_it_replaced(project: Path) -> None:
    write_flow(project, "bad", "  a --> b", a="please fail", b="Say b")
    assert cli(project, "run", "bad").returncode == 1
    assert "'sequencer --run bad retry'" in cli(project, "--run", "bad", "status").stdout
    ended = cli(project, "--run", "bad", "retry")
    assert ended.stdout.splitlines()[0] == "retry: the run was failed"
