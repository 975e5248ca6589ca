from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.cli.views.board import Board
from sequencer.engine.run import Run
from sequencer.store.file import FileStore
from sequencer.store.protocol import View
from tests.acceptance import flow_projects
from tests.unit.cli.calling import call, project, state, worked

TWO_AGENTS = """\
agent: {default: a}
agents:
  a: {kind: scripted, outcomes: [{output: from a, usage: {cost_usd: 0.25, input_tokens: 10}}]}
  b: {kind: scripted, outcomes: [{output: from b}]}
"""
FAILING = """\
agent: {default: broken}
agents: {broken: {kind: scripted, outcomes: [{status: failed, error: no luck}]}}
"""


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (("--max-cycles", "2"), 4),
        (("--max-cycles", "2", "--max-steps", "3"), 3),
        (("--max-cost", "0.6"), 3),
        (("--max-cost", "0.25"), 1),
    ],
)
def test_limits_of_the_invocation(tmp_path: Path, options: tuple[str, ...], steps: int) -> None:
    folder = project(tmp_path / "p", TWO_AGENTS)
    assert call(folder, "run", *options, "--quiet").code == 0
    assert state(folder)["step_index"] == steps


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--agent", "nobody"), ("--agent", "unknown agent 'nobody'", "known agents: a, ")),
        (("--agent-step", "main=nobody"), ("--agent-step main=nobody", "unknown agent")),
        (("--agent-prompt", "main.md=nobody"), ("--agent-prompt main.md=nobody",)),
        (("--agent-step", "mian=a"), ("unknown step 'mian'", "did you mean 'main'?")),
        (("--agent-prompt", "mian.md=a"), ("unknown prompt 'mian.md'", "main.md, supervisor.md")),
        (("--agent-step", "main"), ("'main' is not STEP=A",)),
        (("--agent-step", "=a"), ("'=a' is not STEP=A",)),
        (("--agent-prompt", "main.md="), ("'main.md=' is not PROMPT=A",)),
        (("--position", "nowhere"), ("unknown position 'nowhere'", "main, supervisor")),
        (("--workflow", "nope"), ("--workflow", "unknown workflow 'nope'")),
        (("--review-every", "2"), ("--review-every", "review")),
        (("--max-steps", "0"), ("--max-steps",)),
        (("--max-cycles", "0"), ("--max-cycles",)),
        (("--max-cost", "0"), ("--max-cost",)),
        (("--max-cost", "nan"), ("--max-cost",)),
        (("--max-wait", "-1"), ("--max-wait",)),
        (("--step-timeout", "0"), ("--step-timeout",)),
        (("--step-timeout", "inf"), ("--step-timeout",)),
        (("--router",), ("router",)),
    ],
)
@pytest.mark.parametrize("verb", ["run", "tick"])
def test_wrong_options_are_refused_before_anything_runs(
    tmp_path: Path, verb: str, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    folder = project(tmp_path / "p", TWO_AGENTS)
    ended = call(folder, verb, *options)
    assert ended.code == 2, ended
    for word in words:
        assert word in ended.err
    assert "Traceback" not in ended.err
    journal = folder / "sync" / "journal.jsonl"
    assert not journal.exists() or b'"claimed"' not in journal.read_bytes()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--step-index", "3"), "--step-index"),
        (("--mode", "sync", "--step-index", "3"), "--step-index"),
        (("--mode", "async", "--position", "main"), "--position"),
        (("--mode", "async", "--max-wait", "3"), "--max-wait"),
    ],
)
def test_options_without_a_meaning_in_the_mode(
    tmp_path: Path, options: tuple[str, ...], word: str
) -> None:
    folder = project(tmp_path / "p", TWO_AGENTS)
    ended = call(folder, "run", *options)
    assert ended.code == 2
    assert ended.err.startswith(f"error: {word}: ")
    assert not (folder / "sync").exists()


def test_async_runs_beside_the_run(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    before = (folder / "sync" / "state.json").read_bytes()
    options = ("--mode", "async", "--step-index", "2", "--max-steps", "2", "--json")
    facts = call(folder, "run", *options).json
    assert (facts["steps"], facts["head"]) == (2, None)
    assert (folder / "sync" / "state.json").read_bytes() == before
    names = [path.name for path in (folder / "logs").rglob("*.log")]
    assert "iter-00003_reviewer.log" in names


def test_a_failed_step(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", FAILING)
    ended = call(folder, "run")
    assert (ended.code, ended.out) == (1, "")
    assert "no luck" in ended.err
    assert ".log: step 'supervisor'" in ended.err
    as_json = call(folder, "run", "--json")
    assert as_json.code == 1
    assert as_json.json["exit_code"] == 1
    assert as_json.json["failures"] == 1
    assert as_json.json["steps"] == 0
    assert as_json.json["head"]["status"] == "failed"
    assert call(folder, "run", "--quiet").code == 1
    # Three in a row: a person has to look.
    refused = call(folder, "tick")
    assert refused.code == 3
    assert "sequencer retry" in refused.err


def test_a_tick_never_waits(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", TWO_AGENTS + "run: {max_wait_s: 60}\n")
    assert call(folder, "tick", "--quiet").code == 0
    for option in ("--mode", "--step-index", "--max-wait", "--max-steps", "--max-cycles"):
        assert f"there is no option {option}" in call(folder, "tick", option, "1").err


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ((), "--detach"),
        (("--mode", "async"), "--detach"),
        (("--agent", "a"), "--agent"),
        (("--agent-step", "main=a"), "--agent-step"),
        (("--no-router",), "--router"),
        (("--rehearse",), "--rehearse"),
    ],
)
def test_detach_is_refused_without_workers(
    tmp_path: Path, options: tuple[str, ...], where: str
) -> None:
    folder = project(tmp_path / "p", TWO_AGENTS)
    ended = call(folder, "run", "--detach", *options)
    assert ended.code == 2
    assert f"{where}: " in ended.err
    assert not (folder / "sync" / "state.json").exists()


def test_the_board_of_a_flow_uses_its_own_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, stores = flow_projects.make_project(tmp_path), list[object]()
    begin, work = Board.__init__, Run.work

    def begun(board: Board, screen: Any, run: Run, title: str) -> None:
        stores.append(run.store)
        begin(board, screen, run, title)

    def working(run: Run, *arguments: Any, **options: Any) -> Any:
        stores.append(run.store)
        return work(run, *arguments, **options)

    monkeypatch.setattr(Board, "__init__", begun)
    monkeypatch.setattr(Run, "work", working)
    for count in (2, 4):
        # At first with the chart, and then with what the run has.
        ended = call(folder, "run", "flows/review.md", "--max-steps", "1")
        assert (ended.code, len(stores)) == (0, count), ended.err
        assert stores[-1] is not stores[-2]


def test_status_shows_the_nodes_even_if_there_are_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = flow_projects.make_project(tmp_path)
    assert call(folder, "run", "flows/review.md", "--max-steps", "1").code == 0
    look = FileStore.view
    monkeypatch.setattr(FileStore, "view", lambda store: View(look(store).head, ("it is old",)))
    shown = call(folder, "--run", "review", "status")
    assert "draft" in shown.out
    assert shown.err == "notice: it is old\n"
