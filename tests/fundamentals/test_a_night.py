"""What a night alone must survive, and what is to be known before it begins."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.fundamentals.scratch import STANDARD, Project, ended, running, until

CLIENT = """\
#!{python} -IS
import json, os, pathlib, sys, time
sys.stdin.read()
with open("done.txt", "a") as file:
    file.write(os.environ["SEQUENCER_STEP"] + "\\n")
def say(**event):
    print(json.dumps(event), flush=True)
def speak(text):
    say(type="assistant", message={{"id": text, "content": [{{"type": "text", "text": text}}]}})
def end(text, **more):
    say(type="result", subtype="success", result=text, total_cost_usd=0.0, **more)
    sys.exit(1 if more["is_error"] else 0)
say(type="system", subtype="init", session_id="s", model="m")
{body}
"""
OVERLOADED_ONCE = """\
if not pathlib.Path("was-down").exists():
    pathlib.Path("was-down").touch()
    end("API Error: 529 overloaded_error", is_error=True, api_error_status=529)
end("It is done.", is_error=False)
"""
HANGS = """\
while True:
    say(type="system", subtype="status", status="requesting")
    time.sleep(0.05)
"""
SLOW = """\
for number in range(12):
    speak(f"word {number}")
    time.sleep(0.3)
end("It is done.", is_error=False)
"""
FLOW = """\
---
entrypoint: s
onError: rescue
---

# Caught

```mermaid
flowchart TD
    s((begin)) --> build[Build]
    rescue[Rescue]
```

### build

---
agent: gone
---

Build it.

### rescue

---
agent: scribe
---

Rescue it.
"""
GONE = "agents:\n  gone: {kind: command, argv: [no-such-client]}\n"


class Bin:
    """A folder on PATH with programs of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def client(self, body: str, name: str = "claude") -> Path:
        program = self.folder / name
        program.write_text(CLIENT.format(python=sys.executable, body=body))
        program.chmod(0o700)
        return program

    @property
    def path(self) -> str:
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def programs(tmp_path: Path) -> Bin:
    return Bin(tmp_path / "bin")


def seconds_until(date: str) -> float:
    return (datetime.fromisoformat(date) - datetime.now(UTC)).total_seconds()


# --- a service that is down for a while -------------------------------------------------


def test_an_overloaded_service_is_waited_for(project: Project, programs: Bin) -> None:
    programs.client(OVERLOADED_ONCE)
    project.configure("workflow: {name: standard}\nagent: {default: claude}\n")
    first = project.sequencer("tick", PATH=programs.path)
    head = project.head()
    assert (head["failures_in_row"], head["attempt"], head["step_index"]) == (0, 1, 0)
    assert 20 <= seconds_until(head["not_before"]) <= 38
    said = "nothing due: the agent is unavailable (claude: API Error: 529 overloaded_error)"
    assert said in first.out
    assert said in project.sequencer("tick", PATH=programs.path).out
    assert project.done() == ["supervisor"]
    released = project.history()[-1]
    assert (released["event"], released["outcome"]["status"]) == ("released", "unavailable")
    project.sequencer("retry")
    project.sequencer("tick", PATH=programs.path)
    assert project.head()["step_index"] == 1


def test_a_run_waits_for_an_overloaded_service_by_itself(project: Project, programs: Bin) -> None:
    programs.client(OVERLOADED_ONCE)
    project.configure("workflow: {name: standard}\nagent: {default: claude}\n")
    process = project.start("run", "--max-steps", "1", PATH=programs.path)
    with running(process):
        until(lambda: project.state.exists() and project.head()["not_before"])
        project.sequencer("retry")
        ran = ended(process)
    assert ran.code == 0, ran.err
    assert "API Error: 529" in ran.err
    assert project.head()["step_index"] == 1
    assert "failed" not in project.events()


def test_an_overloaded_service_is_not_waited_for_forever(project: Project, programs: Bin) -> None:
    programs.client('end("API Error: 500", is_error=True, api_error_status=500)')
    project.configure(
        "workflow: {name: standard}\nagent: {default: claude}\nlimits: {max_attempts: 1}\n"
    )
    ran = project.sequencer("tick", code=1, PATH=programs.path)
    assert "still unavailable, and this was attempt 1 without progress" in ran.err
    assert "limits.attempts: 1" in ran.err
    assert project.head()["failures_in_row"] == 1


def test_a_new_project_tries_failed_steps_again(project: Project) -> None:
    project.sequencer("init", "fresh")
    written = yaml.safe_load((project.folder / "fresh" / "orchestration.yaml").read_text())
    assert written["retry"] == 3


# --- a terminal that waits for its turns --------------------------------------------------


def test_a_terminal_in_sync_mode_runs_more_than_twenty_steps(project: Project) -> None:
    ran = project.sequencer("run", "--mode", "sync", "--rehearse")
    assert project.head()["step_index"] == 500
    assert "500 steps are done (--max-steps)" in ran.out
    assert ran.out.count("500 steps") == 1


def test_a_configured_step_limit_holds_in_sync_mode(project: Project) -> None:
    project.configure(STANDARD + "run: {mode: sync, max_steps: 3}\n")
    project.sequencer("run")
    assert project.head()["step_index"] == 3


# --- a client that is not there -----------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "more", "says"),
    [
        (("run",), "agent: {default: codex}\n", "npm install -g @openai/codex"),
        (("tick",), "agent: {default: gone}\n" + GONE, "'no-such-client'"),
        (
            ("run",),
            "agent: {default: gone}\n" + GONE.replace("no-such", "./no-such"),
            "'./no-such-client'",
        ),
        (("run", "--mode", "async"), "agent: {default: anthropic}\n", "ANTHROPIC_API_KEY"),
        (
            ("run",),
            "agent: {default: scribe, prompts: {router.md: gone}}\n"
            "router: {enabled: true, prompt: router.md}\n" + GONE,
            "'no-such-client'",
        ),
    ],
    ids=["codex", "program", "path", "key", "router"],
)
def test_a_missing_client_is_refused_before_the_claim(
    project: Project, programs: Bin, verb: tuple[str, ...], more: str, says: str
) -> None:
    project.prompts("router")
    project.configure("workflow: {name: standard}\n" + more)
    ran = project.sequencer(*verb, code=2, PATH=programs.path)
    assert says in ran.err
    assert "no step was claimed" in ran.err
    assert "claimed" not in project.events()
    assert project.done() == []


def test_a_missing_client_that_only_the_router_selects_is_waited_for(project: Project) -> None:
    project.prompts("router")
    chooser = "  chooser: {kind: command, argv: [echo, main.md]}\n"
    project.configure(
        "workflow: {name: standard}\n"
        "agent: {default: scribe, prompts: {router.md: chooser, main.md: gone}}\n"
        "router: {enabled: true, prompt: router.md}\n" + GONE + chooser
    )
    ran = project.sequencer("tick")
    assert "the agent is unavailable (agents.gone.argv: 'no-such-client'" in ran.out
    assert (project.events()[-1], project.head()["failures_in_row"]) == ("released", 0)


def test_a_missing_client_does_not_use_up_a_flows_error_node(project: Project) -> None:
    project.configure("agent: {default: scribe}\n" + GONE)
    (project.folder / "flow.md").write_text(FLOW)
    ran = project.sequencer("run", "flow.md", code=2)
    assert "'no-such-client'" in ran.err
    assert project.done() == []
    assert not (project.folder / "sync" / "runs" / "flow" / "state.json").exists()


def test_an_overloaded_service_does_not_use_up_a_flows_error_node(
    project: Project, programs: Bin
) -> None:
    programs.client(OVERLOADED_ONCE)
    project.configure("agent: {default: scribe}\n")
    (project.folder / "flow.md").write_text(FLOW.replace("gone", "claude"))
    journal = project.folder / "sync" / "runs" / "flow" / "journal.jsonl"
    process = project.start("run", "flow.md", PATH=programs.path)
    with running(process):
        until(lambda: journal.exists() and '"released"' in journal.read_text())
        project.sequencer("retry", "--run", "flow")
        ran = ended(process)
    assert ran.code == 0, ran.err
    assert project.done() == ["build", "build"]
    assert "retry build after attempt 1: claude: API Error: 529" in ran.err


def test_a_team_with_a_missing_client_does_not_start(project: Project) -> None:
    project.configure("agent: {default: scribe}\n" + GONE)
    tasks = [{"id": "one", "subject": "One"}, {"id": "two", "subject": "Two", "agent": "gone"}]
    (project.folder / "tasks.yaml").write_text(yaml.safe_dump({"tasks": tasks}))
    ran = project.sequencer("run", "tasks.yaml", code=2)
    assert "'no-such-client'" in ran.err
    assert project.done() == []


@pytest.mark.parametrize(
    "more", ["routing: {classifier: gone}\n", "agent: {prompts: {subroutines/git-gh.md: gone}}\n"]
)
def test_a_request_with_a_missing_client_creates_no_run(project: Project, more: str) -> None:
    project.configure(("" if "agent:" in more else "agent: {default: scribe}\n") + more + GONE)
    (project.folder / "prompts" / "subroutines").mkdir()
    ran = project.sequencer("start", "Fix it", code=2)
    assert "gone" in ran.err or "auto" in ran.err
    assert not (project.folder / "sync" / "runs").exists()


def test_a_client_replaced_during_the_night_is_waited_for(project: Project, programs: Bin) -> None:
    program = programs.client('pathlib.Path(__file__).unlink()\nend("It is done.", is_error=False)')
    project.configure("workflow: {name: standard}\nagent: {default: claude}\n")
    process = project.start("run", "--max-steps", "2", PATH=programs.path)
    with running(process):
        until(lambda: project.state.exists() and project.head()["not_before"])
        assert project.head()["failures_in_row"] == 0
        programs.client('end("It is done.", is_error=False)', program.name)
        project.sequencer("retry")
        ran = ended(process)
    assert ran.code == 0, ran.err
    assert project.done() == ["supervisor", "main"]
    assert "'claude' can't be started: it is not on PATH" in ran.err


# --- a client that hangs --------------------------------------------------------------------


def idle(project: Project, seconds: float) -> None:
    project.configure(
        "workflow: {name: standard}\nagent: {default: claude}\n"
        f"step_defaults: {{idle_timeout_s: {seconds}, timeout_s: 30}}\n"
    )


def test_a_client_that_sends_events_and_nothing_else_hangs(project: Project, programs: Bin) -> None:
    programs.client(HANGS)
    idle(project, 0.8)
    ran = project.sequencer("run", code=1, PATH=programs.path)
    assert "no progress for 0.8 s" in ran.err


def test_a_client_that_produces_output_does_not_hang(project: Project, programs: Bin) -> None:
    programs.client(SLOW)
    idle(project, 3.0)
    project.sequencer("run", "--max-steps", "1", PATH=programs.path)
    assert project.head()["step_index"] == 1
