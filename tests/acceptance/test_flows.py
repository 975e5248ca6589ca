"""Flowcharts as a person uses them: the command line, an agent script, and a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance import cli_process
from tests.acceptance.flow_projects import (
    CONFIGURATION,
    REVIEW,
    as_json,
    asked,
    cli,
    make_project,
    trace,
    write_flow,
)
from tests.concurrency.odd_bytes import on_terminal


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


# --- a flow from its beginning to its end ------------------------------------------------


def test_a_flow_waits_for_a_person_and_continues(project: Path) -> None:
    ended = cli_process.cli(project, "run", "flows/review.md", "--state", "who=Ann")
    assert ended.returncode == 4, ended.stderr
    assert "'fine' waits for an answer" in ended.stderr
    assert "sequencer answer" in ended.stderr
    assert asked(project)[0] == "draft: Say a draft for Ann"
    assert sorted(asked(project)[1:]) == ["facts: Say facts", "prose: Say prose of a draft for Ann"]

    gates = cli(project, "inbox").stdout
    assert 'Is "a draft for Ann" fine? Notes: facts' in gates
    assert "approve (Looks good): It goes out" in gates
    assert "sequencer --run review answer fine approve\n" in gates
    assert "sequencer --run review answer fine 'send back'\n" in gates
    (gate,) = as_json(cli(project, "inbox", "--json"))
    assert (gate["run"], gate["node"], gate["free_text"]) == ("review", "fine", True)
    assert [option["value"] for option in gate["options"]] == ["approve", "send back"]
    assert gate["expires_at"] is None

    answered = cli(project, "answer", "fine", "SEND_BACK")
    assert answered.returncode == 0, answered.stderr
    assert cli(project, "run", "review").returncode == 4
    answered = cli_process.cli(project, "--run", "review", "answer", "fine", "looks good")
    assert answered.returncode == 0
    ended = cli_process.cli(project, "run", "review", "--json")
    assert ended.returncode == 0, ended.stderr
    assert as_json(ended)["reason"].startswith("the run is completed")
    lines = trace(project, "review")
    assert lines[:4] == ["initialised draft", "start draft", "done draft", "start prose"]
    assert "loop fine -> draft #1" in lines
    assert lines[-4:] == ["done publish", "start done", "done done", "completed completed"]
    assert lines.count("done draft") == 2


def test_a_custom_answer_takes_the_default_edge(project: Path) -> None:
    cli(project, "run", "review")
    assert cli(project, "answer", "fine", "Say more about it.").returncode == 0
    assert cli(project, "run", "review").returncode == 0
    assert asked(project)[-1] == "note: Say noted Say more about it."
    again = cli(project, "answer", "fine", "approve")
    assert again.returncode == 3
    assert "no run waits for a decision" in again.stderr
    named = cli(project, "--run", "review", "answer", "later")
    assert named.returncode == 3
    assert "run 'review' waits for no decision" in named.stderr


def test_a_wrong_answer_lists_the_right_ones(project: Path) -> None:
    (project / "flows" / "review.md").write_text(REVIEW.replace("allowCustomInput: true\n", ""))
    cli(project, "run", "review")
    refused = cli(project, "answer", "fine", "perhaps")
    assert refused.returncode == 2
    assert "unknown answer 'perhaps'" in refused.stderr
    assert "approve, send back" in refused.stderr
    nobody = cli(project, "answer", "publish", "approve")
    assert (nobody.returncode, "fine" in nobody.stderr) == (2, True)


def test_the_question_is_asked_on_a_terminal(project: Path) -> None:
    (project / "flows" / "review.md").write_text(REVIEW.replace("allowCustomInput: true\n", ""))
    # A wrong word, a number, and then, for the second round, a value.
    shown = on_terminal(project, "run", "review", typed=b"perhaps\n2\napprove\n").decode()
    assert 'Is "a draft for nobody" fine?' in shown
    assert "[1] approve, [2] send back" in shown
    assert "completed" in shown
    assert "[Y/n]" not in shown
    assert [line.split(":")[0] for line in asked(project)].count("draft") == 2
    assert asked(project)[-1] == "publish: Say published"


def test_answering_later_leaves_the_question_open(project: Path) -> None:
    on_terminal(project, "run", "review", typed=b"later\n")
    (gate,) = as_json(cli(project, "inbox", "--json"))
    assert gate["node"] == "fine"


# --- which flow, which run ---------------------------------------------------------------


def test_a_flow_by_its_configured_name(project: Path) -> None:
    (project / "orchestration.yaml").write_text(
        CONFIGURATION + "workflows: {release: flows/review.md}\n"
    )
    assert cli(project, "run", "release").returncode == 4
    (gate,) = as_json(cli(project, "inbox", "--json"))
    assert gate["run"] == "release"
    shown = as_json(cli(project, "plan", "--list", "--json"))
    assert [entry["kind"] for entry in shown if entry["name"] == "release"] == ["graph"]


def test_new_starts_another_run_of_the_same_flow(project: Path) -> None:
    write_flow(
        project, "short", "a --> b", a="Say a {{state.k}}", b="Say b", front="state: {k: x}\n"
    )
    assert cli(project, "run", "short").returncode == 0
    again = cli(project, "run", "short")
    assert (again.returncode, len(asked(project))) == (0, 2)
    refused = cli(project, "run", "short", "--state", "k=y")
    assert refused.returncode == 2
    assert "--new" in refused.stderr
    assert cli(project, "run", "short", "--new", "--state", "k=y").returncode == 0
    assert asked(project)[2:] == ["a: Say a y", "b: Say b"]
    names = [
        entry["run"] for entry in as_json(cli(project, "status", "--all", "--ended", "--json"))
    ]
    assert {"short", "short-2"} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nobody"), "unknown flow 'nobody'"),
        (("run", "flows/gone.md"), "flows/gone.md"),
        (("run", "review", "--state", "zz=1"), "zz"),
        (("run", "review", "--state", "_zz=1"), "keys that start with '_', such as '_zz', belong"),
        (("run", "review", "--state", "zz"), "'zz' is not KEY=VALUE"),
        (("run", "review", "--state", "=1"), "'=1' is not KEY=VALUE"),
        (("run", "--state", "who=x"), "--state"),
        (("run", "review", "--workflow", "standard"), "--workflow"),
        (("run", "review", "--mode", "async"), "mode async"),
        (("run", "review", "--position", "draft"), "no positions"),
    ],
)
def test_a_refused_command_starts_nothing(
    project: Path, arguments: tuple[str, ...], message: str
) -> None:
    ended = cli(project, *arguments)
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert asked(project) == []
    assert not (project / "sync").exists()


def test_a_flow_without_state_says_that_it_has_no_keys(project: Path) -> None:
    (project / "flows" / "bare.md").write_text("```mermaid\nflowchart TD\n  a\n```\n### a\nGo.\n")
    ended = cli(project, "run", "bare", "--state", "k=1")
    assert ended.returncode == 2
    assert "the state has no key 'k'\n  its keys: none\n" in ended.stderr


def test_several_files_of_one_name_are_listed(project: Path) -> None:
    (project / "review.md").write_text(REVIEW)
    ended = cli(project, "run", "review")
    assert ended.returncode == 2
    assert "flows/review.md" in ended.stderr
    assert cli(project, "run", "./review.md").returncode == 4


# --- ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chart", "front", "status", "last"),
    [
        ("a --> b", "", "failed", "fail a attempt 1"),
        ("a\nb", "onError: b\n", "completed_after_error", "done b"),
        ("b -->|b| b\nb -->|x| c", "config: {maxIterations: 1}\n", "max_iterations",
         "maxIterations 1 exceeded at b -> b"),
    ],
)  # fmt: skip
def test_a_bad_end_has_exit_code_1(
    project: Path, chart: str, front: str, status: str, last: str
) -> None:
    sections = {"a": "please fail", "b": "Say b", "c": "Say c"}
    used = {name: text for name, text in sections.items() if name in chart}
    write_flow(project, "bad", chart, front, **used)
    ended = cli(project, "run", "bad", "--json")
    assert (ended.returncode, as_json(ended)["exit_code"]) == (1, 1)
    assert f"ended as {status}" in ended.stderr
    lines = trace(project, "bad")
    assert lines[-1] == f"completed {status}"
    assert lines[-2].startswith(last)


def test_a_time_limit_ends_the_agents_and_a_retry_continues(project: Path) -> None:
    (project / "slow.py").write_text("import time; time.sleep(30)\n")
    front = "config: {timeout: 3000}\n"
    write_flow(project, "slow", "a --> b", front, a="Say a", b="Say b")
    agent = (project / "agent.py").read_text()
    (project / "agent.py").write_text("import time; time.sleep(30)\n")
    ended = cli(project, "run", "slow")
    assert ended.returncode == 1
    assert "timed_out: its agents took longer than 3000 ms" in ended.stderr
    (project / "agent.py").write_text(agent)
    assert cli(project, "--run", "slow", "retry").returncode == 0
    assert cli(project, "run", "slow", "--json").returncode == 0
    assert asked(project) == ["a: Say a", "b: Say b"]


def test_retry_reruns_a_node_after_a_failure(project: Path) -> None:
    write_flow(project, "bad", "a --> b", a="please fail", b="Say {{output}}")
    assert cli(project, "run", "bad").returncode == 1
    assert cli(project, "run", "bad").returncode == 1
    assert len(asked(project)) == 1
    write_flow(project, "bad", "a --> b", a="Say fine", b="Say {{output}}")
    assert cli(project, "--run", "bad", "retry").returncode == 0
    assert cli(project, "run", "bad").returncode == 0
    assert asked(project)[-1] == "b: Say fine"
    assert cli(project, "--run", "bad", "retry").returncode == 3


def test_ticks_do_one_node_each(project: Path) -> None:
    write_flow(project, "short", "a --> b", a="Say a", b="Say b")
    assert cli(project, "run", "short", "--max-steps", "1").returncode == 0
    status = as_json(cli(project, "--run", "short", "status", "--json"))
    assert [node["state"] for node in status["nodes"]] == ["done", "ready"]
    following = as_json(cli(project, "--run", "short", "plan", "--json"))
    assert [one["step"] for one in following] == ["b"]
    assert cli(project, "--run", "short", "tick").returncode == 0
    over = cli(project, "--run", "short", "tick")
    assert over.returncode == 0
    assert "nothing due" in over.stdout
    assert asked(project) == ["a: Say a", "b: Say b"]


# --- a chart that was changed --------------------------------------------------------------


def test_a_changed_chart_is_refused_until_it_is_adopted(project: Path) -> None:
    cli(project, "run", "review")
    (project / "flows" / "review.md").write_text(
        REVIEW.replace("publish & note --> done", "publish --> tell\n  tell & note --> done")
        + "\n### tell\nSay told\n"
    )
    assert cli(project, "--run", "review", "answer", "fine", "approve").returncode == 3
    refused = cli(project, "run", "review")
    assert refused.returncode == 3
    assert "sequencer --run review adopt" in refused.stderr
    adopted = cli(project, "--run", "review", "adopt")
    assert adopted.returncode == 0, adopted.stderr
    assert cli(project, "answer", "fine", "approve").returncode == 0
    assert cli(project, "run", "review").returncode == 0
    assert asked(project)[-1] == "tell: Say told"
    facts = cli(project, "--run", "review", "history", "--json").stdout.splitlines()
    (adoption,) = [line for line in facts if '"adopted"' in line]
    assert "node 'tell' is new" in adoption
