"""`tell` as a person uses it: before, while and after a task runs, from files and pipes."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sequencer
from tests.acceptance.cli_process import launched, until
from tests.acceptance.flow_projects import as_json, cli
from tests.forked import Forked

SECRET = "hunter2-" + "correct-horse"
AGENT = """\
import os, sys, time
text = sys.stdin.read()
step = os.environ["SEQUENCER_STEP"]
with open("asked-" + step + ".txt", "a") as file:
    file.write(text + "\\n=====\\n")
if "please wait" in text:
    while not os.path.exists("go"):
        time.sleep(0.01)
if "please fail" in text and not os.path.exists("mended"):
    sys.exit("it broke")
print(step + " is done")
"""
CONFIGURATION = """\
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py]}
workflow: {name: crew}
workflows:
  crew:
    size: 2
    tasks:
      - {id: look, subject: Look around}
      - {id: build, subject: Build it, blocked_by: [look], description: "%s"}
      - {id: sum, subject: Sum it up, blocked_by: [build]}
"""


LINE = (
    CONFIGURATION.partition("workflow:")[0]
    + """\
workflow: {name: line}
workflows:
  line: {kind: %s, steps: [{name: plan, prompt: p.md}, {name: build, prompt: p.md}]}
"""
)
TITLE = "# Messages to you"


def make_line(folder: Path, kind: str = "cycle", prompt: str = "Do it.") -> Path:
    (folder / "agent.py").write_text(AGENT)
    (folder / "orchestration.yaml").write_text(LINE % kind)
    (folder / "prompts").mkdir()
    (folder / "prompts" / "p.md").write_text(prompt)
    return folder


def make_project(folder: Path, description: str = "As ever.") -> Path:
    (folder / "agent.py").write_text(AGENT)
    (folder / "orchestration.yaml").write_text(CONFIGURATION % description)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def heard(project: Path, task: str) -> list[str]:
    """Return what stands behind the title of the messages in each prompt of *task*."""
    path = project / f"asked-{task}.txt"
    prompts = path.read_text().split("\n=====\n")[:-1] if path.exists() else []
    return [prompt.partition(TITLE)[2] for prompt in prompts]


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[Forked]:
    """A process that works on a run whose task ``build`` waits until there is a file ``go``."""
    make_project(tmp_path, "please wait")
    child = launched(tmp_path, "run", "--quiet")
    try:
        until(lambda: heard(tmp_path, "build"))
        yield child
    finally:
        (tmp_path / "go").touch()
        child.wait(20)


def test_a_message_can_be_sent_while_the_run_works(tmp_path: Path, at_work: Forked) -> None:
    told = cli(tmp_path, "tell", "build", "Hurry")
    assert told.stderr == (
        "message sent to build: it is running and does not see this; another attempt at it will, "
        "or the tasks that wait for it\n"
    )
    said = as_json(cli(tmp_path, "--json", "tell", "sum", "Hello"))
    assert (said["step"], said["is_running"]) == ("sum", False)
    assert said["revision"] > 0
    (tmp_path / "go").touch()
    assert at_work.wait(20) == 0
    assert "Hello" in heard(tmp_path, "sum")[0]
    assert "Hurry" not in heard(tmp_path, "build")[0]


@pytest.mark.slow
def test_simultaneous_messages_are_never_lost(tmp_path: Path, at_work: Forked) -> None:
    """Two processes each, and the one that works: no message is lost."""
    children = [launched(tmp_path, "tell", "sum", f"message {number}") for number in range(4)]
    assert [child.wait(20) for child in children] == [0] * 4
    (tmp_path / "go").touch()
    assert at_work.wait(20) == 0
    (text,) = heard(tmp_path, "sum")
    assert all(text.count(f"message {number}") == 1 for number in range(4))


def test_a_failed_run_takes_messages_only_after_a_retry(tmp_path: Path) -> None:
    project = make_project(tmp_path, "please fail")
    assert cli(project, "run", "--quiet").returncode == 1
    late = cli(project, "tell", "build", "Use port 80")
    assert late.returncode == 3
    assert "the run has ended as failed" in late.stderr
    assert cli(project, "retry").returncode == 0
    assert cli(project, "tell", "build", "Use port 80").returncode == 0
    (project / "mended").touch()
    assert cli(project, "run", "--quiet").returncode == 0
    first, second = heard(project, "build")
    assert "Use port 80" not in first
    assert "Use port 80" in second


def test_a_task_that_is_done(project: Path) -> None:
    cli(project, "run", "--max-steps", "1", "--quiet")
    late = cli(project, "tell", "look", "Once more")
    assert late.returncode == 3
    assert "task 'look' is done, so it would not read it" in late.stderr
    assert "sequencer status" in late.stderr


def test_an_unknown_task(project: Path) -> None:
    cli(project, "run", "--max-steps", "1", "--quiet")
    ended = cli(project, "tell", "bild", "Hello")
    assert ended.returncode == 2
    assert "'bild'" in ended.stderr
    assert "known tasks: build, look, sum" in ended.stderr


@pytest.mark.parametrize("text", ["", " \n "])
def test_an_empty_message(project: Path, text: str) -> None:
    cli(project, "run", "--max-steps", "1", "--quiet")
    ended = cli(project, "tell", "sum", text)
    assert ended.returncode == 2
    assert "tell: the text is empty" in ended.stderr


def test_a_run_that_never_started_takes_no_message(project: Path) -> None:
    ended = cli(project, "tell", "sum", "Hello")
    assert ended.returncode == 3
    assert "tell: the run has not started" in ended.stderr
    assert "'sequencer run' starts it" in ended.stderr
    assert not (project / "sync" / "state.json").exists()


def test_a_step_that_is_not_in_the_run_is_refused(project: Path) -> None:
    make_line(project)
    assert cli(project, "run", "--max-steps", "1", "--quiet").returncode == 0
    path = project / "orchestration.yaml"
    path.write_text(path.read_text().replace("name: build", "name: test"))
    ended = cli(project, "tell", "test", "hello")
    assert ended.returncode == 3
    assert "'sequencer adopt'" in ended.stderr
    assert cli(project, "tell", "hello").returncode == 0


def test_a_run_that_is_complete(project: Path) -> None:
    assert cli(project, "run", "--quiet").returncode == 0
    ended = cli(project, "tell", "sum", "Thanks")
    assert ended.returncode == 3
    assert "the run has ended as completed" in ended.stderr


def test_a_pipe(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli(project, "run", "--max-steps", "1", "--quiet")
    lines = "one\n- two\n{{output}}\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert cli(project, "tell", "build", "-").returncode == 0
    cli(project, "run", "--quiet")
    assert lines in heard(project, "build")[0]


@pytest.mark.parametrize("data", [b"\xff\xfe", b""])
def test_an_empty_or_undecodable_pipe_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    cli(project, "run", "--max-steps", "1", "--quiet")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert cli(project, "tell", "build", "-").returncode == 2


def test_no_secret_gets_into_files_or_prompts(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    cli(project, "run", "--max-steps", "1", "--quiet")
    assert cli(project, "tell", "build", f"Log in with {SECRET}").returncode == 0
    cli(project, "run", "--quiet")
    assert "Log in with" in heard(project, "build")[0]
    files = [path for path in project.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_the_journal_records_the_sender_and_the_message(project: Path) -> None:
    cli(project, "run", "--max-steps", "1", "--quiet")
    cli(project, "tell", "build", "Mind the gap\x1b[31m")
    journal = (project / "sync" / "journal.jsonl").read_text().splitlines()
    told = [fact for fact in map(json.loads, journal) if fact["event"] == "told"]
    assert [(fact["step"], fact["outcome"]["output"]) for fact in told] == [
        ("build", "Mind the gap\x1b[31m")
    ]
    assert told[0]["outcome"]["by"]
    # Shown, it can't colour anybody's terminal.
    assert "\x1b" not in cli(project, "log").stdout
    assert "\x1b" not in cli(project, "history").stdout


def steps(project: Path, number: int) -> int:
    return cli(project, "run", "--max-steps", str(number), "--quiet").returncode


def has_begun(project: Path) -> Path:
    assert steps(project, 1) == 0
    return project


def test_the_next_step_of_a_sequence_reads_the_message_once(tmp_path: Path) -> None:
    has_begun(make_line(tmp_path))
    told = cli(tmp_path, "tell", "Mind the gap")
    assert (told.returncode, told.stderr) == (
        0,
        "message sent to the step that comes next: it will read this when it starts\n",
    )
    assert "messages    waiting for the next step\n" in cli(tmp_path, "status").stdout
    assert as_json(cli(tmp_path, "--json", "status"))["status"] == "waiting-next"
    assert steps(tmp_path, 2) == 0
    assert "Mind the gap" in heard(tmp_path, "build")[0]
    assert heard(tmp_path, "plan") == ["", ""]
    assert "messages" not in cli(tmp_path, "status").stdout
    assert "told" not in as_json(cli(tmp_path, "--json", "status"))


def test_the_history_says_which_message_an_agent_has_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun(make_line(tmp_path))
    cli(tmp_path, "tell", "Mind the gap")
    monkeypatch.setenv("SEQUENCER_TOKEN", "1")
    assert cli(tmp_path, "tell", "Everything is fine").returncode == 0
    journal = (tmp_path / "sync" / "journal.jsonl").read_text().splitlines()
    told = [fact for fact in map(json.loads, journal) if fact["event"] == "told"]
    person, agent = (fact["outcome"]["by"] for fact in told)
    assert agent == f"an agent of {person}"
    history = cli(tmp_path, "history").stdout
    assert f"by {person}, Mind the gap" in history
    assert f"by {agent}, Everything is fine" in history


def test_a_message_leaves_the_rest_of_status_as_it_was(tmp_path: Path) -> None:
    has_begun(make_line(tmp_path))
    before = cli(tmp_path, "status").stdout.splitlines()
    since = next(line for line in before if line.startswith("status "))
    next_second = time.time() + 1
    until(lambda: time.time() > next_second)
    for text in ("Mind the gap", "And the door"):
        assert cli(tmp_path, "tell", text).returncode == 0
    after = cli(tmp_path, "status").stdout.splitlines()
    assert since in after
    assert [line for line in after if not line.startswith("messages ")] == before


@pytest.mark.slow
def test_a_message_to_a_named_step_waits_for_it(tmp_path: Path) -> None:
    has_begun(make_line(tmp_path))
    for text in ("one", "two"):
        said = as_json(cli(tmp_path, "--json", "tell", "plan", text))
        assert (said["step"], said["is_running"]) == ("plan", False)
    assert steps(tmp_path, 2) == 0
    assert cli(tmp_path, "tell", "plan", "three").returncode == 0
    assert steps(tmp_path, 4) == 0
    assert heard(tmp_path, "build") == ["", "", ""]
    first, second, third, fourth = heard(tmp_path, "plan")
    assert second.index("one") < second.index("two")
    assert ["one" in third, "three" in third] == [False, True]
    assert (first, fourth) == ("", "")


def test_every_attempt_reads_the_message_until_one_is_accepted(tmp_path: Path) -> None:
    make_line(tmp_path, prompt="please fail")
    assert steps(tmp_path, 1) == 1
    assert cli(tmp_path, "tell", "Use port 80").returncode == 0
    assert cli(tmp_path, "retry").returncode == 0
    assert steps(tmp_path, 1) == 1
    (tmp_path / "mended").touch()
    assert steps(tmp_path, 2) == 0
    assert ["Use port 80" in text for text in heard(tmp_path, "plan")] == [False, True, True]
    assert heard(tmp_path, "build") == [""]


def test_a_message_to_a_running_step_is_read_by_another_attempt(tmp_path: Path) -> None:
    make_line(tmp_path, "procedure", "please wait")
    child = launched(tmp_path, "run", "--quiet", "--max-steps", "1")
    try:
        until(lambda: heard(tmp_path, "plan"))
        told = cli(tmp_path, "tell", "plan", "Hurry")
        assert "it is running and does not see this; another attempt will" in told.stderr
    finally:
        (tmp_path / "go").touch()
        assert child.wait(20) == 0
    assert "waiting for plan" in cli(tmp_path, "status").stdout
    # It comes no more: the step after it reads the message in its place.
    assert steps(tmp_path, 1) == 0
    assert heard(tmp_path, "plan") == [""]
    assert "Hurry" in heard(tmp_path, "build")[0]


def test_a_step_done_by_a_program_leaves_the_message_for_the_next(tmp_path: Path) -> None:
    has_begun(make_line(tmp_path))
    assert cli(tmp_path, "tell", "Mind the gap").returncode == 0
    with sequencer.open_run(tmp_path).turn() as turn:
        turn.output = "done"
    assert steps(tmp_path, 1) == 0
    assert "Mind the gap" in heard(tmp_path, "plan")[1]


def test_a_reset_discards_an_older_message_with_the_same_token(tmp_path: Path) -> None:
    has_begun(make_line(tmp_path))
    assert cli(tmp_path, "tell", "the old one").returncode == 0
    assert cli(tmp_path, "reset", "--yes").returncode == 0
    assert cli(tmp_path, "tell", "the new one").returncode == 0
    assert steps(tmp_path, 1) == 0
    last = heard(tmp_path, "plan")[-1]
    assert "the new one" in last
    assert "the old one" not in last


def test_invalid_messages_to_a_sequence_are_refused(tmp_path: Path) -> None:
    make_line(tmp_path, "procedure")
    assert "has not started" in cli(tmp_path, "tell", "Hello").stderr
    has_begun(tmp_path)
    refused = {
        ("plan", "Hello"): (3, "step 'plan' is done, so it would not read it"),
        ("bild", "Hello"): (2, "known steps: build, plan"),
        (" ",): (2, "tell: the text is empty"),
        ("a", "b", "c"): (2, "expected [STEP] TEXT"),
        (): (2, "expected [STEP] TEXT"),
    }
    for words, (code, message) in refused.items():
        ended = cli(tmp_path, "tell", *words)
        assert (ended.returncode, message in ended.stderr) == (code, True), ended.stderr
    assert steps(tmp_path, 1) == 0
    assert "the run is complete, so no step would read it" in cli(tmp_path, "tell", "Hi").stderr


def test_a_message_opens_no_gate_and_an_edit_removes_no_message(tmp_path: Path) -> None:
    make_line(tmp_path)
    text = (tmp_path / "orchestration.yaml").read_text()
    gate = text.replace("{name: plan,", "{name: plan, requires_approval: true,")
    (tmp_path / "orchestration.yaml").write_text(gate)
    assert steps(tmp_path, 2) == 4
    assert cli(tmp_path, "tell", "Go on, please").returncode == 0
    assert steps(tmp_path, 2) == 4
    path = tmp_path / "sync" / "state.json"
    head = json.loads(path.read_text())
    before = path.read_text()
    path.write_text(json.dumps({**head, "told": []}))
    ended = cli(tmp_path, "run")
    assert (ended.returncode, "told can't be changed there" in ended.stderr) == (4, True)
    assert json.loads(before)["told"] == head["told"]
    assert cli(tmp_path, "answer", "approve").returncode == 0
    assert steps(tmp_path, 1) == 0
    assert "Go on, please" in heard(tmp_path, "build")[0]


FLOW = """```mermaid
flowchart TD
draft --> fine{{Fine?}}
fine -->|yes| publish
fine -->|no| draft
```

### draft

Draft it.

### publish

Publish {{output}}.
"""


def test_a_node_of_a_flowchart_reads_it_once(tmp_path: Path) -> None:
    make_line(tmp_path)
    (tmp_path / "flow.md").write_text(FLOW)
    assert cli(tmp_path, "run", "flow.md", "--quiet").returncode == 4
    assert cli(tmp_path, "--run", "flow", "tell", "draft", "Shorter").returncode == 0
    assert cli(tmp_path, "--run", "flow", "tell", "publish", "Quickly").returncode == 0
    for node in ("fine", None):
        words = ["tell", node, "Hello"] if node else ["tell", "Hello"]
        refused = cli(tmp_path, "--run", "flow", *words)
        assert refused.returncode == 3
    for answer, code in (("no", 4), ("no", 4), ("yes", 0)):
        assert cli(tmp_path, "--run", "flow", "answer", "fine", answer).returncode == 0
        assert cli(tmp_path, "run", "flow.md", "--quiet").returncode == code
    assert ["Shorter" in text for text in heard(tmp_path, "draft")] == [False, True, False]
    assert "Quickly" in heard(tmp_path, "publish")[0]
