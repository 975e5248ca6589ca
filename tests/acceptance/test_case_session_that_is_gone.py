"""A conversation that can't be continued ends; the step goes on in a new one, in the same try."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli, head

CASE = Path(__file__).with_name("cases") / "session-that-is-gone"
FULL = "Prompt is too long"
CLAUDE_HAS = "11111111-0000-4000-8000-000000000000"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CASE, tmp_path / "project"))


def run(project: Path, *arguments: str, code: int = 0) -> str:
    """Return what ``sequencer ARGUMENTS`` prints, which ends with *code*."""
    ended = cli(project, *arguments, PATH=f"{project}:/usr/local/bin:/usr/bin:/bin")
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def facts(project: Path, event: str) -> list[dict[str, Any]]:
    found = map(json.loads, run(project, "history", "--json").splitlines())
    return [fact for fact in found if fact["event"] == event]


def calls(project: Path) -> list[bool]:
    """Return for each start of a client whether it was to continue a conversation."""
    return ["resume" in line for line in (project / "calls.txt").read_text().splitlines()]


def rewrite(project: Path, name: str, old: str, new: str) -> None:
    path = project / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(("agent", "words"), [("claude", "No conversation"), ("codex", "rollout")])
def test_the_step_starts_a_new_conversation_at_once(project: Path, agent: str, words: str) -> None:
    run(project, "run", "--agent", agent, "--max-steps", "2")
    assert calls(project) == [False, True, False]
    assert (head(project)["step_index"], head(project)["failures_in_row"]) == (2, 0)
    log = run(project, "log")
    assert "[sequencer] the conversation can't be continued, a new one starts:" in log
    assert words in log
    build = facts(project, "succeeded")[1]
    assert (build["step"], build["attempt"]) == ("build", 1)
    assert not facts(project, "failed")


def test_the_new_conversation_is_continued_and_history_names_each(project: Path) -> None:
    # The first conversation is lost, any other is there.
    rewrite(project, "standin", "\nif lost:", f"\nif lost == [{CLAUDE_HAS!r}]:")
    path = project / "standin"
    number = '"%08d-0000-4000-8000-000000000000" % len(open("calls.txt").readlines())'
    path.write_text(path.read_text().replace(f'session_id="{CLAUDE_HAS}"', f"session_id={number}"))
    rewrite(project, "standin", f"[{CLAUDE_HAS!r}]", '["00000001-0000-4000-8000-000000000000"]')
    steps = ", ".join(f"{{name: {name}, text: go, continue_session: true}}" for name in "abc")
    rewrite(project, "orchestration.yaml", "{name: build, text: go, continue_session: true}", steps)
    run(project, "run", "--max-steps", "4")
    assert calls(project) == [False, True, False, True, True]
    sessions = [one["outcome"]["session"] for one in facts(project, "succeeded")]
    assert [int(one[:8]) for one in sessions] == [1, 3, 4, 5]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("text", [FULL, "API Error: 413 Prompt is too long"])
def test_a_full_conversation_ends_in_the_same_way(project: Path, text: str) -> None:
    rewrite(
        project, "standin", '"No conversation found with session ID: " + lost[0]]', f"{text!r}]"
    )
    run(project, "run", "--max-steps", "2")
    assert calls(project) == [False, True, False]


def test_a_step_too_long_on_its_own_fails(project: Path) -> None:
    """Without a conversation to blame nothing starts anew, and no next try is excused."""
    rewrite(project, "standin", "if lost:", "if True:")
    rewrite(
        project, "standin", '"No conversation found with session ID: " + lost[0]]', f"{FULL!r}]"
    )
    rewrite(
        project,
        "standin",
        '    print("No conversation found with session ID: " + lost[0],',
        '    print("",',
    )
    rewrite(project, "orchestration.yaml", "max_attempts: 4", "max_attempts: 1")
    run(project, "tick", code=1)
    assert calls(project) == [False]
    assert "can't be continued" not in run(project, "log")


def test_a_retry_never_continues_a_conversation_that_may_be_at_fault(project: Path) -> None:
    """A request that is refused as wrong may be so because of what was said before."""
    rewrite(
        project,
        "standin",
        '"No conversation found with session ID: " + lost[0]]',
        '"API Error: 400 tool_use ids were found without tool_result blocks"]',
    )
    rewrite(project, "standin", "is_error=True,", "is_error=True, api_error_status=400,")
    rewrite(project, "orchestration.yaml", "max_attempts: 4", "max_attempts: 2")
    run(project, "run", "--max-steps", "2")
    assert calls(project) == [False, True, False]
    failed = facts(project, "failed")
    assert [one["step"] for one in failed] == ["build"]
    assert "API Error: 400" in failed[0]["outcome"]["error"]


@pytest.mark.slow
def test_after_a_skip_the_lost_conversation_is_never_requested_again(project: Path) -> None:
    # Whatever the step does, it fails; the one behind it continues, too.
    rewrite(
        project,
        "standin",
        "if lost:\n",
        'if lost or (len(open("calls.txt").readlines()) in (3, 4)):\n',
    )
    rewrite(project, "standin", "lost[0]", '"".join(lost)')
    rewrite(
        project,
        "standin",
        '"No conversation found with session ID: " + "".join(lost)]',
        '"No conversation found with session ID" if lost else "API Error: 401"]',
    )
    rewrite(project, "orchestration.yaml", "retry: {max_attempts: 4}", "retry: {max_attempts: 1}")
    rewrite(
        project,
        "orchestration.yaml",
        "continue_session: true}]",
        "continue_session: true}, {name: test, text: go, continue_session: true}]",
    )
    run(project, "tick")
    run(project, "tick", code=1)
    assert calls(project) == [False, True, False]
    assert head(project)["session"] is None
    run(project, "skip")
    run(project, "tick", code=1)
    assert calls(project)[3:] == [False]


def test_a_session_id_with_a_secret_is_not_saved(project: Path) -> None:
    """An agent can write as its client: what it calls a conversation may be a key."""
    path = project / "standin"
    key = "hunter2-hunter2-hunter2"
    path.write_text(path.read_text().replace(f'"{CLAUDE_HAS}"', 'os.environ["MY_API_KEY"]'))
    rewrite(project, "standin", "import json, sys", "import json, os, sys")
    rewrite(
        project,
        "orchestration.yaml",
        "program: standin}",
        "program: standin, pass_env: [MY_API_KEY]}",
    )
    search = f"{project}:/usr/local/bin:/usr/bin:/bin"
    ended = cli(project, "run", "--max-steps", "2", PATH=search, MY_API_KEY=key)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert calls(project) == [False, False]
    kept = b"".join(one.read_bytes() for one in (project / "sync").rglob("*") if one.is_file())
    assert key.encode() not in kept


def test_after_a_skip_the_last_accepted_conversation_continues(project: Path) -> None:
    rewrite(project, "standin", "\nif lost:", "\nif False:")
    rewrite(
        project,
        "orchestration.yaml",
        "continue_session: true}]",
        "continue_session: true}, {name: test, text: go, continue_session: true}]",
    )
    run(project, "tick")
    run(project, "skip")
    run(project, "tick")
    assert calls(project) == [False, True]


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("{max_steps: 2}", "the last one had 2 steps (continue_session.max_steps)"),
        ("{max_context: 2}", "the last one has grown to 3 tokens (continue_session.max_context)"),
    ],
)
def test_a_conversation_that_is_too_expensive_is_not_continued(
    project: Path, limit: str, said: str
) -> None:
    rewrite(project, "standin", "\nif lost:", "\nif False:")
    rewrite(
        project,
        "standin",
        'usage={"input_tokens": 1,',
        'usage={"input_tokens": 1 + 2 * bool(lost),',
    )
    rewrite(project, "orchestration.yaml", "continue_session: true", f"continue_session: {limit}")
    rewrite(project, "orchestration.yaml", "{name: plan, text: hello}, ", "")
    run(project, "run", "--max-steps", "4")
    assert calls(project) == [False, True, False, True]
    logs = "".join(path.read_text() for path in (project / "logs").rglob("*.log"))
    assert f"[sequencer] a new conversation starts: {said}" in logs
    assert head(project)["session"]["steps"] == 2
