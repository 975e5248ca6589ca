"""Teams through the command line, with real processes and real repositories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.acceptance.cli_process import cli, head, launched, until
from tests.acceptance.team_projects import accepted, events, git, make_project, told

Task = dict[str, Any]
DIAMOND: list[Task] = [
    {"id": "plan", "subject": "Plan"},
    {"id": "left", "subject": "Left", "blocked_by": ["plan"]},
    {"id": "right", "subject": "Right", "blocked_by": ["plan"]},
    {"id": "sum", "subject": "Sum up", "blocked_by": ["left", "right"]},
]
WRITERS: list[Task] = [
    {"id": "one", "subject": "One", "role": "implementer"},
    {"id": "two", "subject": "Two", "role": "implementer"},
    {"id": "sum", "subject": "Sum up", "role": "summarizer", "blocked_by": ["one", "two"]},
]


def test_work_on_different_files_is_merged_without_leftovers(tmp_path: Path) -> None:
    plan: dict[str, Any] = {
        "one": {"writes": {"a.txt": "a"}, "seconds": 0.4},
        "two": {"writes": {"b.txt": "b"}},
    }
    project = make_project(tmp_path, WRITERS, plan, is_repository=True)
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    merges = git(project, "log", "--merges", "--first-parent", "--format=%s").splitlines()
    assert merges == ["Merge task two: Two", "Merge task one: One"], "as listed"
    assert (project / "a.txt").read_text() + (project / "b.txt").read_text() == "ab"
    assert git(project, "status", "--porcelain") == ""
    assert git(project, "branch", "--format=%(refname:short)") == "main"
    assert len(git(project, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_a_conflict_fails_its_task_and_loses_nothing(tmp_path: Path) -> None:
    plan: dict[str, Any] = {
        "one": {"writes": {"shared.txt": "one\n"}, "seconds": 0.4},
        "two": {"writes": {"shared.txt": "two\n", "own.txt": "2"}},
    }
    project = make_project(tmp_path, WRITERS, plan, is_repository=True)
    ran = cli(project, "run")
    assert ran.returncode == 1
    assert "shared.txt" in ran.stderr
    assert accepted(project) == ["one"], "who stands first in the list has won"
    assert (project / "shared.txt").read_text() == "one\n"
    assert not (project / "own.txt").exists()
    (branch,) = git(
        project, "branch", "--list", "sequencer-team/*", "--format=%(refname:short)"
    ).split()
    assert branch in ran.stderr
    assert git(project, "show", f"{branch}:shared.txt") == "two"
    assert git(project, "status", "--porcelain") == ""
    # A person brings it in by hand, and the task is done anew on top.
    git(project, "merge", "-q", "-X", "theirs", branch)
    (project / "agent.json").write_text("{}")
    assert cli(project, "retry").returncode == 0
    assert cli(project, "run").returncode == 0
    assert accepted(project) == ["one", "two", "sum"]
    assert (project / "shared.txt").read_text() == "two\n"


@pytest.mark.slow
def test_a_task_with_merged_work_can_be_rewound(tmp_path: Path) -> None:
    tasks = [WRITERS[0], {**WRITERS[1], "blocked_by": ["one"]}]
    plan: dict[str, Any] = {
        "one": {"writes": {"a.txt": "first\n"}},
        "two": {"writes": {"b.txt": "b\n"}},
    }
    project = make_project(tmp_path, tasks, plan, is_repository=True)
    merges = ("log", "--merges", "--first-parent", "--format=%s")
    assert cli(project, "run").returncode == 0
    assert cli(project, "rewind", "one").returncode == 0
    plan["one"]["writes"]["a.txt"] = "second\n"
    (project / "agent.json").write_text(json.dumps(plan))
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    # Each works on top of what it did before, is told so, and only what is new is merged.
    known = "the work of an earlier attempt at {} is already in the checkout"
    for task in ("one", "two"):
        assert [known.format(task) in text for text in told(project, task)] == [False, True]
    assert git(project, *merges).splitlines() == [
        "Merge task one: One",
        "Merge task two: Two",
        "Merge task one: One",
    ]
    assert (project / "a.txt").read_text() + (project / "b.txt").read_text() == "second\nb\n"
    assert git(project, "branch", "--format=%(refname:short)") == "main"
    assert git(project, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_write_by_a_read_only_role_is_reported(tmp_path: Path) -> None:
    tasks: list[Task] = [{"id": "look", "subject": "Look", "role": "researcher"}]
    plan: dict[str, Any] = {"look": {"writes": {"shared.txt": "changed\n"}}}
    project = make_project(tmp_path / "warn", tasks, plan, is_repository=True)
    ran = cli(project, "run")
    assert ran.returncode == 0
    assert "only reads" in ran.stderr
    assert "shared.txt" in ran.stderr
    (done,) = [one for one in events(project) if one["event"] == "succeeded"]
    assert "shared.txt" in done["outcome"]["notices"][0]
    strict: dict[str, Any] = {"teams": {"on_write": "fail"}}
    project = make_project(tmp_path / "fail", tasks, plan, is_repository=True, **strict)
    ran = cli(project, "run")
    assert ran.returncode == 1
    assert "on_write" in ran.stderr


GUESSES: list[Task] = [
    {"id": "a", "subject": "Guess A"},
    {"id": "b", "subject": "Guess B"},
    {"id": "c", "subject": "Guess C", "blocked_by": ["b"]},
    {"id": "fix", "subject": "Fix it", "blocked_by": ["a", "c"], "needs": "any"},
]


@pytest.mark.slow
def test_a_task_continues_without_its_failed_inputs(tmp_path: Path) -> None:
    project = make_project(tmp_path, GUESSES, {"b": {"exit": 3, "seconds": 0.3}})
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    assert accepted(project) == ["a", "fix"], "c can't be done without b, and is no reason to stop"
    (heard,) = told(project, "fix")
    assert "a is done" in heard
    assert "# What was not done" in heard
    assert "- c: Guess C" in heard
    shown = json.loads(cli(project, "status", "--json").stdout)
    assert shown["status"] == "complete"
    assert {one["id"]: one["state"] for one in shown["nodes"]}["b"] == "failed"
    (project / "agent.json").write_text("{}")
    assert cli(project, "rewind", "b").returncode == 0
    assert cli(project, "run").returncode == 0
    assert accepted(project)[2:] == ["b", "c", "fix"]


def test_with_too_few_inputs_left_the_run_fails_and_can_be_retried(tmp_path: Path) -> None:
    project = make_project(tmp_path, GUESSES, {"a": {"exit": 3}, "b": {"exit": 3}})
    ran = cli(project, "run")
    assert ran.returncode == 1
    assert "task 'a' failed" in ran.stderr
    assert accepted(project) == []
    (project / "agent.json").write_text(json.dumps({"b": {"exit": 3}}))
    assert cli(project, "retry").returncode == 0
    assert cli(project, "run").returncode == 0
    assert accepted(project) == ["a", "fix"]


def test_a_replacement_tries_once_more(tmp_path: Path) -> None:
    other = {"kind": "command", "argv": ["{python}", "-c", "print('the other did it')"]}
    tasks: list[Task] = [{"id": "a", "subject": "A", "retry": {"max_attempts": 2}}, GUESSES[1]]
    project = make_project(tmp_path, tasks, {"a": {"exit": 3}}, teams={"fallback_agent": "other"})
    settings = project / "orchestration.yaml"
    written = yaml.safe_load(settings.read_text())
    written["agents"]["other"] = other
    settings.write_text(yaml.safe_dump(written))
    assert cli(project, "run").returncode == 0
    ended = [
        one for one in events(project) if one["step"] == "a" and "agent" in (one["outcome"] or {})
    ]
    assert [(one["event"], one["outcome"]["agent"]) for one in ended] == [
        ("failed", "script"),
        ("failed", "script"),
        ("succeeded", "other"),
    ]
    # It is one more, and no more than one.
    written["agents"]["other"] = {**other, "argv": ["{python}", "-c", "raise SystemExit(4)"]}
    settings.write_text(yaml.safe_dump(written))
    assert cli(project, "reset", "--yes").returncode == 0
    ran = cli(project, "run")
    assert ran.returncode == 1
    assert "exit code 4" in ran.stderr or "code 4" in ran.stderr
    assert sum(one["event"] == "failed" and one["step"] == "a" for one in events(project)) == 5
    written["teams"]["fallback_agent"] = "nobody"
    settings.write_text(yaml.safe_dump(written))
    refused = cli(project, "run")
    assert refused.returncode == 2
    assert "teams.fallback_agent" in refused.stderr


def started(project: Path) -> subprocess.Popen[bytes]:
    with (project / "agent.errors").open("ab") as errors:
        return launched(project, "run", "--mode", "sync", stderr=errors, start_new_session=True)


def wide(width: int) -> tuple[list[Task], dict[str, Any]]:
    """Return *width* tasks that write at once until a file ``go`` appears, and what they do."""
    writers: list[Task] = [
        {"id": f"w{n}", "subject": "W", "role": "implementer"} for n in range(width)
    ]
    last: Task = {"id": "sum", "subject": "Sum", "blocked_by": [one["id"] for one in writers]}
    plan = {f"w{n}": {"writes": {f"w{n}.txt": f"{n}"}, "until": "go"} for n in range(width)}
    return [*writers, last], plan


def killed(victim: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Kill *victim* alone, and return its children once they had time to end."""
    orphans = psutil.Process(victim.pid).children(recursive=True)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    psutil.wait_procs(orphans, timeout=20)
    return orphans


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_three_processes_share_a_team_and_one_is_killed(tmp_path: Path) -> None:
    tasks, plan = wide(6)
    project = make_project(
        tmp_path, tasks, plan, size=6, is_repository=True, run={"max_parallel": 2}
    )
    workers = [started(project) for _ in range(3)]
    try:
        until(lambda: len(list((project / "seen").glob("w*.pid"))) == 6, 60)
        claims = {one["owner"]["pid"]: one for one in head(project)["claims"]}
        assert len(claims) == 3, "each has two of the six"
        orphans = killed(workers[1])
        (project / "go").touch()
        for worker in (workers[0], workers[2]):
            assert worker.wait(90) == 0, (project / "agent.errors").read_text()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert not [one for one in orphans if one.is_running()]
    assert sorted(accepted(project)) == sorted([*(f"w{n}" for n in range(6)), "sum"])
    kinds = [one["event"] for one in events(project)]
    assert kinds.count("taken-over") == 2
    assert [(project / f"w{n}.txt").read_text() for n in range(6)] == list("012345")
    assert git(project, "status", "--porcelain") == ""
    assert len(git(project, "worktree", "list").splitlines()) == 1
    assert git(project, "branch", "--format=%(refname:short)") == "main"


SUB_ISSUES: list[Task] = [
    {"id": "api", "title": "API", "description": "Build the API"},
    {"id": "page", "title": "Page", "description": "Build the page", "depends_on": ["api"]},
    {"id": "docs", "title": "Docs", "description": "Write", "depends_on": ["api"]},
    {"id": "test", "title": "Test", "description": "Test", "depends_on": ["page", "docs"]},
]
LEAD: list[Task] = [
    {
        "id": "lead",
        "subject": "Cut it",
        "role": "lead",
        "adds": "sub-issues",
        "retry": {"max_attempts": 2},
    },
    {"id": "sum", "subject": "Sum up", "role": "summarizer", "blocked_by": ["lead"]},
]
YES = json.dumps({"pass": True, "reason": "fine"})


@pytest.mark.slow
def test_a_lead_adds_four_sub_issues_and_a_cycle_is_refused(tmp_path: Path) -> None:
    circle = [{**SUB_ISSUES[0], "depends_on": ["test"]}, *SUB_ISSUES[1:]]
    says = [{"sub_issues": circle}, {"sub_issues": SUB_ISSUES}]
    plan: dict[str, Any] = {
        "lead": {"says": says},
        **{f"verify-{n['id']}": {"says": YES} for n in SUB_ISSUES},
    }
    project = make_project(tmp_path, LEAD, plan)
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    (refused,) = [one for one in events(project) if one["event"] == "failed"]
    assert " -> " in refused["outcome"]["error"], "the path of the cycle"
    assert "test" in refused["outcome"]["error"]
    assert " -> " in told(project, "lead")[1], "the next attempt knows why"
    (grown,) = [one for one in events(project) if one["event"] == "grown"]
    assert grown["outcome"]["tasks"][:2] == ["impl-api", "verify-api"]
    order = accepted(project)
    assert order[:3] == ["lead", "impl-api", "verify-api"]
    assert order[-1] == "sum"
    assert len(order) == 10
    assert order.index("verify-page") < order.index("impl-test")
    heard = told(project, "sum")[0]
    assert 'task="verify-test"' in heard


@pytest.mark.slow
def test_a_failed_verification_is_fixed_and_repeated(tmp_path: Path) -> None:
    no = json.dumps({"pass": False, "reason": "test_login fails"})
    plan: dict[str, Any] = {
        "lead": {"says": {"sub_issues": SUB_ISSUES[:1]}},
        "verify-api": {"says": [no, no, YES]},
    }
    project = make_project(tmp_path, LEAD, plan)
    assert cli(project, "run").returncode == 0
    order = accepted(project)
    fixes = ["verify-api-fix-1", "verify-api-fix-2"]
    assert order == ["lead", "impl-api", *fixes, "verify-api", "sum"]
    assert "test_login fails" in told(project, "verify-api-fix-1")[0]
    plan["verify-api"] = {"says": no}
    project = make_project(tmp_path / "never", LEAD, plan)
    ran = cli(project, "run")
    assert ran.returncode == 1
    assert "test_login fails" in ran.stderr
    assert "sum" not in accepted(project)


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("on_hard", ["finish", "kill"])
def test_a_budget_stops_a_team(tmp_path: Path, on_hard: str) -> None:
    tasks: list[Task] = [
        {"id": "slow", "subject": "Slow"},
        {"id": "dear", "subject": "Dear"},
        {"id": "next", "subject": "Next", "blocked_by": ["dear"]},
    ]
    plan: dict[str, Any] = {
        "dear": {"usage": {"cost_usd": 6.0, "input_tokens": 10}},
        "slow": {"seconds": 1.0 if on_hard == "finish" else 30},
    }
    budget: dict[str, Any] = {"budget": {"max_cost_usd": 5, "on_hard": on_hard}}
    project = make_project(tmp_path, tasks, plan, teams=budget)
    ran = cli(project, "run", timeout_s=25)
    assert ran.returncode == 0, ran.stderr
    assert "6.0000 of 5 USD" in ran.stdout + ran.stderr
    assert sorted(accepted(project)) == (["dear", "slow"] if on_hard == "finish" else ["dear"])
    warned = [one["outcome"]["note"] for one in events(project) if one["event"] == "warned"]
    assert len(warned) == 1
    # Nothing more happens until somebody raises the cap; then it goes on.
    before = head(project)["revision"]
    assert cli(project, "tick").returncode == 0
    assert head(project)["revision"] == before
    assert "in the way  the team has used 6.0000 of 5 USD" in cli(project, "status").stdout
    plan["slow"] = {}
    more: dict[str, Any] = {"budget": {"max_cost_usd": 50}}
    make_project(tmp_path, tasks, plan, teams=more)
    assert cli(project, "run").returncode == 0
    assert sorted(accepted(project)) == ["dear", "next", "slow"]
    assert head(project)["status"] == "complete"


@pytest.mark.slow
def test_the_circuit_breaker_opens_and_a_person_closes_it(tmp_path: Path) -> None:
    tasks: list[Task] = [{"id": f"t{n}", "subject": "T"} for n in range(4)]
    plan: dict[str, Any] = {f"t{n}": {"exit": 1} for n in range(4)}
    project = make_project(tmp_path, tasks, plan, size=1, teams={"max_failures": 2})
    ran = cli(project, "run")
    assert ran.returncode == 3
    assert "max_failures" in ran.stderr
    assert [one["event"] for one in events(project)].count("failed") == 2
    assert cli(project, "tick").returncode == 3
    (project / "agent.json").write_text("{}")
    assert cli(project, "retry").returncode == 0
    assert cli(project, "run").returncode == 0
    assert sorted(accepted(project)) == ["t0", "t1", "t2", "t3"]


@pytest.mark.slow
def test_start_gives_a_big_request_to_a_team_and_explains_why(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"verify": {"says": YES}}
    project = make_project(tmp_path, DIAMOND, plan, teams={"enabled": True})
    text = "Debug the flaky login: a race condition, intermittent data loss"
    shown = cli(project, "plan", "--request", text, "--label", "bug", "--json")
    made = json.loads(shown.stdout)
    assert made["team"]["uses_team"], made["team"]
    ran = cli(project, "--run", "bug", "start", text, "--label", "bug")
    assert ran.returncode == 0, ran.stderr
    begun = events(project, "bug")[0]["outcome"]["team"]
    assert begun["score"] >= 60
    assert any("race condition" in reason for reason in begun["reasons"])
    order = accepted(project, "bug")
    assert sorted(order[:4]) == ["history", "hypothesis-a", "hypothesis-b", "hypothesis-c"]
    assert order[4:] == ["fix", "verify", "commit", "summary"]
    assert text in told(project, "fix")[0]
    alone = cli(project, "plan", "--request", text, "--label", "bug", "--no-team", "--json")
    assert json.loads(alone.stdout)["team"]["why"] == "--no-team was given"
    refused = cli(project, "start", "How are you?", "--procedure", "plan-mode", "--team")
    assert refused.returncode == 2
    assert "full-development" in refused.stderr


@pytest.mark.slow
def test_a_task_added_by_adopt_is_done_before_its_dependents(tmp_path: Path) -> None:
    project = make_project(tmp_path, DIAMOND, size=1)
    assert cli(project, "run", "--max-steps", "2").returncode == 0
    more: list[Task] = [
        {"id": "extra", "subject": "Extra"},
        {"id": "behind", "subject": "Behind what is done", "blocked_by": ["plan"]},
        *DIAMOND[:3],
        {"id": "sum", "subject": "Sum up", "blocked_by": ["left", "right", "extra", "behind"]},
    ]
    make_project(tmp_path, more, size=1)
    assert cli(project, "run").returncode == 3
    assert cli(project, "adopt").returncode == 0
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    order = accepted(project)
    assert sorted(order) == sorted(["plan", "left", "right", "extra", "behind", "sum"])
    assert order[-1] == "sum"


def test_a_killed_holder_of_a_closed_task_is_not_waited_for(tmp_path: Path) -> None:
    tasks: list[Task] = [{"id": "slow", "subject": "Slow"}, {"id": "dear", "subject": "Dear"}]
    plan: dict[str, Any] = {
        "slow": {"seconds": 60},
        "dear": {"usage": {"cost_usd": 6.0}},
    }
    project = make_project(tmp_path, tasks, plan, teams={"budget": {"max_cost_usd": 5}})
    worker = started(project)
    try:
        until(lambda: (project / "seen").is_dir() and accepted(project) == ["dear"], 60)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    finally:
        worker.kill()
        worker.wait()
    ran = cli(project, "run", timeout_s=50)
    assert ran.returncode == 0, ran.stderr
    assert "of 5 USD" in ran.stdout + ran.stderr
    assert head(project)["claims"] == []


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("merge", ["auto", "listed"])
def test_a_task_waiting_to_merge_delays_no_other_task(tmp_path: Path, merge: str) -> None:
    tasks: list[Task] = [
        {"id": "slow", "subject": "Slow", "role": "implementer"},
        {"id": "quick", "subject": "Quick", "role": "implementer"},
        {"id": "next", "subject": "Next", "role": "summarizer", "blocked_by": ["quick"]},
    ]
    plan: dict[str, Any] = {
        "slow": {"writes": {"a.txt": "a"}, "until": "seen/next-3"},
        "quick": {"writes": {"b.txt": "b"}},
    }
    if merge == "listed":
        plan["slow"] = {"writes": {"a.txt": "a"}, "seconds": 1.0}
    project = make_project(tmp_path, tasks, plan, is_repository=True, teams={"merge": merge})
    ran = cli(project, "run")
    assert ran.returncode == 0, ran.stderr
    order = accepted(project)
    assert order[0] == ("quick" if merge == "auto" else "slow")


@pytest.mark.slow
def test_the_graph_of_a_run_is_drawn_before_and_after_tasks_are_added(tmp_path: Path) -> None:
    plan = {"decompose": {"says": {"sub_issues": SUB_ISSUES[:1]}}, "verify-api": {"says": YES}}
    project = make_project(tmp_path, DIAMOND, plan)
    request = ("start", "Cut it", "--procedure", "orchestrator-full", "--team")
    assert cli(project, "--run", "cut", *request, "--no-run").returncode == 0
    drawn = cli(project, "--run", "cut", "plan", "--mermaid").stdout
    assert "Sum up" in drawn
    assert "Implement: API" not in drawn
    assert cli(project, "--run", "cut", "run").returncode == 0
    drawn = cli(project, "--run", "cut", "plan", "--mermaid").stdout
    assert "Implement: API" in drawn
    assert "seqDone" in drawn
    shown = json.loads(cli(project, "--run", "cut", "plan", "--list", "--json").stdout)
    assert {one["id"] for one in shown["nodes"]} >= {"impl-api", "verify-api"}
    assert cli(project, "plan", "--mermaid").returncode == 2
