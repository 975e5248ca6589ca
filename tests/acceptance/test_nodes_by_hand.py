"""What a person does to single nodes of a flowchart, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.flow_projects import as_json, asked, cli, make_project, trace, write_flow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = make_project(tmp_path)
    says = {name: f"Say {name}" for name in "abcde"}
    write_flow(made, "ship", "a --> b & c\nb & c --> d\nd --> e", **says)
    assert cli(made, "run", "ship", "--quiet").returncode == 0
    return made


def begun(project: Path) -> list[str]:
    return [line[0] for line in asked(project)]


@pytest.mark.slow
def test_rewind_to_a_node_reruns_it_and_what_follows(project: Path) -> None:
    said = cli(project, "--run", "ship", "rewind", "c")
    assert said.stdout.splitlines()[0] == "back to 'c'; these run again: c, d, e"
    shown = as_json(cli(project, "--run", "ship", "plan", "--json"))
    assert [one["step"] for one in shown] == ["c"]
    nodes = as_json(cli(project, "--run", "ship", "status", "--json"))["nodes"]
    states = {one["id"]: one["state"] for one in nodes}
    assert states == {"a": "done", "b": "done", "c": "ready", "d": "waiting", "e": "pending"}
    assert cli(project, "run", "ship", "--quiet").returncode == 0
    assert sorted(begun(project)) == sorted("abcde" + "cde")
    assert "back to c" in trace(project, "ship")


def test_a_node_can_be_marked_done_and_another_skipped(project: Path) -> None:
    assert cli(project, "--run", "ship", "rewind", "b").returncode == 0
    stamped = cli(
        project, "--run", "ship", "skip", "--as-done", "b", "--output", "mine", "--note", "x"
    )
    assert stamped.stdout.splitlines()[0] == "accepted: node 'b'"
    assert cli(project, "--run", "ship", "skip", "d").stdout.startswith("skipped: node 'd'")
    assert cli(project, "run", "ship", "--quiet").returncode == 0
    assert sorted(begun(project)) == sorted("abcde" + "e")
    lines = trace(project, "ship")
    assert {"stamped b", "skipped d"} <= set(lines)
    nodes = as_json(cli(project, "--run", "ship", "status", "--json"))["nodes"]
    assert {one["state"] for one in nodes} == {"done"}


def test_a_failed_node_is_tried_again_alone(project: Path) -> None:
    write_flow(project, "shaky", "a --> b", a="Say a", b="please fail")
    assert cli(project, "run", "shaky", "--quiet").returncode == 1
    assert cli(project, "--run", "shaky", "retry", "b").returncode == 0
    assert cli(project, "--run", "shaky", "skip", "--as-failed", "b").returncode == 0
    assert cli(project, "run", "shaky", "--quiet").returncode == 1
    assert begun(project)[5:] == ["a", "b"], "what a person has failed is not tried"


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--run", "ship", "skip", "--as-done"], 3, "may be at several nodes at once"),
        (["--run", "ship", "skip", "b"], 3, "the run has ended as completed"),
        (["--run", "ship", "rewind", "nobody"], 2, "unknown node 'nobody'"),
        (
            ["--run", "ship", "skip", "--as-done", "--output", "x"],
            2,
            "works only with NODE and --as-done",
        ),
        (["skip", "--as-done", "a"], 2, "goes from step to step"),
        (["skip", "a"], 2, "goes from step to step"),
        (["rewind", "a"], 3, "the run has not started"),
    ],
)
def test_meaningless_changes_are_refused(
    project: Path, arguments: list[str], code: int, words: str
) -> None:
    ended = cli(project, *arguments)
    assert (ended.returncode, words in ended.stderr) == (code, True), ended.stderr
