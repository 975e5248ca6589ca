"""From an issue of a tracker to its gate, as a person pipes it: real processes, an agent script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import forked
from tests.acceptance.cli_process import cli, environment
from tests.unit.workflows.requests.test_tracker_issues import GH, LINEAR, OPENED, REST, SESSION

AGENT = """\
import json, os, sys
step = os.environ["SEQUENCER_STEP"]
with open(f"prompt-{os.environ['SEQUENCER_TOKEN']}-{step}.txt", "w") as file:
    file.write(sys.stdin.read())
rounds = len([name for name in os.listdir() if name.endswith("-fix.txt")])
if step == "judge":
    print(json.dumps({"pass": rounds == 3, "reason": f"test {rounds} fails"}))
elif step == "fix":
    print(f"tried idea {rounds}")
else:
    print(f"{step} is done")
"""
CONFIGURATION = """\
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py]}
"""
MAX_COMMENTS = 200
"""How many comments a request has at most."""
ALL_VALUES = """\
{{request.identifier}} | {{request.url}} | {{request.repository}} | {{request.base_branch}} |
{{request.labels}} | {{request.assignees}} | {{request.priority}} | {{request.comments}} |
{{request.attachments}} | {{request.text}}
"""
OWN = (
    CONFIGURATION
    + """\
workflows:
  own:
    kind: procedure
    description: Look at it and judge
    steps:
      - {name: look, description: Looks at everything}
      - name: judge
        validation: {fixer: {name: fix}, max_attempts: 5}
"""
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    (folder / "orchestration.yaml").write_text(CONFIGURATION)
    return folder


def with_own_procedure(folder: Path, fixer: str = "Fix it.\n") -> None:
    (folder / "orchestration.yaml").write_text(OWN)
    (folder / "prompts").mkdir()
    for name, text in (("look", ALL_VALUES), ("judge", "Judge.\n"), ("fix", fixer)):
        (folder / "prompts" / f"{name}.md").write_text(text)


def piped(folder: Path, value: object, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``sequencer ARGUMENTS`` with *value* as JSON on its standard input."""
    said = folder.parent / "stdin.json"
    said.write_text(json.dumps(value))
    with said.open() as stdin:
        return forked.run(
            [sys.executable, "-m", "sequencer", *arguments],
            cwd=folder,
            env=environment(),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=60.0,
        )


def prompts(folder: Path, step: str) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob(f"prompt-*-{step}.txt"))]


def test_the_label_of_an_issue_reaches_its_gate(project: Path) -> None:
    (project / "issue.json").write_text(json.dumps(GH, indent=2))
    started = cli(project, "start", "--file", "issue.json")
    assert started.returncode == 4, started.stderr
    assert "debugger-full  (label 'bug' is one of routing.labels.debugger)" in started.stdout
    (waiting,) = json.loads(cli(project, "inbox", "--json").stdout)
    assert (waiting["run"], waiting["step"]) == ("login-times-out", "get-approval")
    (prompt,) = prompts(project, "debugger-reproduction")
    for words in (
        *("# Request: Login times out", "Identifier: acme/app#7", "Assigned to: bea"),
        *("Address: https://github.com/acme/app/issues/7", "Labels: bug"),
        *("ann wrote:\n\nsince 2.1", "- https://github.com/user-attachments/assets/1f-2e"),
    ):
        assert words in prompt
    assert "buy" not in prompt
    assert '"title"' not in prompt


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("event", [OPENED, LINEAR, SESSION], ids=["github", "linear", "session"])
def test_the_label_of_an_event_reaches_its_gate(event: dict[str, Any], project: Path) -> None:
    started = piped(project, event, "start", "-")
    assert started.returncode == 4, started.stderr
    assert "get-approval" in started.stdout + started.stderr
    again = piped(project, event, "plan", "--file", "-", "--json")
    assert json.loads(again.stdout)["procedure"] == "debugger-full"


def test_missing_labels_of_an_issue_are_reported(project: Path) -> None:
    asked, issue = ("plan", "--request", "-"), {"title": "Add a page", "body": "x"}
    told = piped(project, issue, *asked)
    assert told.returncode == 0
    assert "notice: standard input: it has no labels" in told.stderr
    given = piped(
        project, {"title": "Add a page", "body": "x"}, "plan", "--request", "-", "--label", "bug"
    )
    assert "no labels" not in given.stderr
    assert given.stdout.startswith("debugger-full")
    assert "no text of its 3 comments" in piped(project, REST, *asked).stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": 2}', "is JSON, but not an issue in a known form; its keys: a, b"),
        (json.dumps([GH]), "is a JSON list of 1 instead of one issue"),
        (json.dumps(GH)[:-5], "starts like JSON but can't be read"),
        (json.dumps({**GH, "labels": "bug"}), "labels has to be a list, not str"),
        ('{"a":' * 5000, "starts like JSON but can't be read"),
        (json.dumps({**GH, "labels": [{"name": "x" * 200}]}), "labels.0"),
    ],
)
def test_other_json_starts_nothing(text: str, words: str, project: Path) -> None:
    (project / "x.json").write_text(text)
    refused = cli(project, "start", "--file", "x.json")
    assert (refused.returncode, "Traceback" in refused.stderr) == (2, False), refused.stderr
    assert f"error: x.json: {words}" in refused.stderr
    assert not (project / "sync").exists()


@pytest.mark.slow
def test_a_step_gets_every_value_and_values_are_not_expanded_again(project: Path) -> None:
    with_own_procedure(project)
    event = json.loads(json.dumps(LINEAR))
    event["data"] |= {"description": "{{run.id}} {{steps.look.output}}", "labels": ["ui", "x"]}
    ended = piped(project, event, "start", "-", "--procedure", "own", "--comment", "soon")
    assert ended.returncode == 0, ended.stderr
    (prompt,) = prompts(project, "look")
    assert prompt.split("\n\n")[0].strip() == (
        "ENG-42 | https://linear.app/acme/issue/ENG-42/login | shop |  |\n"
        "ui, x | Bea | High | soon |\n | {{run.id}} {{steps.look.output}}"
    )


def test_a_hostile_issue_moves_no_cursor_and_names_no_path(project: Path) -> None:
    evil = {
        **GH,
        "title": "../../\x1b]0;owned\x07x\u202e /etc/passwd",
        "labels": [{"name": "bug\x1b[2J"}],
        "assignees": [{"login": "\x1b[31mred"}],
    }
    started = piped(project, evil, "start", "-", "--no-run")
    assert started.returncode == 0, started.stderr
    for stream in (started.stdout, started.stderr):
        assert not {"\x1b", "\x07", "\u202e"} & set(stream)
    (run,) = (project / "sync" / "runs").iterdir()
    assert run.name == "0-owned-x-etc-passwd"


@pytest.mark.slow
def test_a_fixer_gets_what_earlier_rounds_found_and_tried(project: Path) -> None:
    with_own_procedure(project, "Fix it. Before: <{{validation.earlier}}>\n")
    ended = cli(project, "start", "x", "--procedure", "own")
    assert ended.returncode == 0, ended.stderr
    first, second, third = prompts(project, "fix")
    assert first.startswith("Fix it. Before: <>\n")
    assert second.startswith(
        "Fix it. Before: <Round 1 found: test 0 fails\n\nThen this was tried: tried idea 1>\n"
    )
    assert "Round 2 found: test 1 fails\n\nThen this was tried: tried idea 2>" in third
    assert "test 2 fails" not in third
    # A prompt that asks for none of it gets all of it.
    judged = prompts(project, "judge")[-1]
    assert "# What the check found (round 4)\n\ntest 2 fails" in judged
    assert "## What the rounds before found and tried\n\nRound 1 found: test 0" in judged


def test_the_purpose_of_steps_is_shown(project: Path) -> None:
    with_own_procedure(project)
    assert re.search("\nown +Look at it and judge\n", cli(project, "plan", "--list").stdout)
    shown = cli(project, "plan", "own").stdout
    assert shown.splitlines()[1] == "Look at it and judge"
    assert "\nlook  Looks at everything\n" in shown
    planned = cli(project, "plan", "--request", "x", "--procedure", "own").stdout
    assert "Look at it and judge" in planned
    assert "look  Looks at everything" in planned
    assert cli(project, "start", "x", "--procedure", "own", "--no-run").returncode == 0
    assert "purpose     Looks at everything" in cli(project, "--run", "x", "status").stdout
    dry = json.loads(cli(project, "--run", "x", "run", "--dry-run", "--json").stdout)
    assert dry["description"] == "Looks at everything"


def test_a_classifier_that_never_ends_is_given_up_on(project: Path) -> None:
    (project / "stubborn.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
    )
    (project / "orchestration.yaml").write_text(
        CONFIGURATION + '  slow: {kind: command, argv: ["{python}", -IS, stubborn.py], '
        "grace_s: 600}\nrouting: {classifier: slow, timeout_s: 1, fallback: plan-mode}\n"
    )
    told = json.loads(
        cli(project, "plan", "--request", "Improve it", "--json", timeout_s=60).stdout
    )
    assert (told["procedure"], told["source"]) == ("plan-mode", "fallback")
    tried = [one["why"] for one in told["considered"] if one["source"] == "classification"]
    assert "no answer within 1 s" in tried[0]
    assert "too little of the 1 s is left to ask again" in tried[1]


def test_a_pipe_as_a_file_is_read_to_its_end(project: Path) -> None:
    read, write = os.pipe()
    text = b"Add a page\n" + b"x" * 500_000

    def fill() -> None:
        with os.fdopen(write, "wb") as pipe:
            pipe.write(text)

    writer = threading.Thread(target=fill)
    writer.start()
    try:
        planned = subprocess.run(
            [sys.executable, "-m", "sequencer", "plan", "--file", f"/dev/fd/{read}", "--json"],
            cwd=project,
            env=environment(),
            pass_fds=(read,),
            capture_output=True,
            check=True,
        )
    finally:
        os.close(read)
        writer.join()
    request = json.loads(planned.stdout)["request"]
    assert (request["title"], len(request["text"])) == ("Add a page", 500_000)


def test_a_persons_own_comment_is_included_even_among_many(project: Path) -> None:
    many = [{"author": {"login": "a"}, "body": f"c{n}"} for n in range(MAX_COMMENTS)]
    (project / "issue.json").write_text(json.dumps({**GH, "comments": many}))
    planned = cli(project, "plan", "--file", "issue.json", "--comment", "mine", "--json")
    comments = json.loads(planned.stdout)["request"]["comments"]
    assert len(comments) == MAX_COMMENTS
    assert comments[0].endswith("c1")
    assert comments[-1] == "mine"
