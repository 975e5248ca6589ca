"""Flows as people publish and use them, with agents that are scripts by the clients' names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import cli_process, team_projects
from tests.acceptance.flow_projects import cli, make_project, trace, write_flow

FAKE_CLIENTS = Path(__file__).parents[1] / "fake_clients"
CLIENT = f"""\
#!{sys.executable} -IS
import json, os, sys
sys.path.insert(0, {str(FAKE_CLIENTS)!r})
from event_streams import ENDS, OPENINGS
client, step = os.path.basename(sys.argv[0]), os.environ["SEQUENCER_STEP"]
told = {{"step": step, "prompt": sys.stdin.read(), "argv": sys.argv[1:]}}
with open("asked.jsonl", "a") as file:
    file.write(json.dumps(told) + "\\n")
number = open("asked.jsonl").read().count(f'"step": "{{step}}"')
answers = json.load(open("answers.json")).get(step, [step + " is done"])
answer = answers[min(number, len(answers)) - 1]
for event in (*OPENINGS[client](answer), *ENDS[client](answer, fails=False)):
    print(json.dumps(event), flush=True)
"""
PAPER = """\
---
id: "paper-check"
name: "Paper check"
version: "0.1"
description: "Three readers at once, one report, and a person who decides"
entrypoint: "collect"

state:
  input: ""
  text: null
  facts_result: null
  style_result: null
  report: null
  decision: null
  letter: null

config:
  timeout: 300000
  maxIterations: 10

retry:
  maxAttempts: 3
  backoff: exponential
  initialDelay: 1000

onError: "answer"
---

# Paper check

- **Parallel**: facts and style are read at the same time

## Flow

```mermaid
flowchart TD
    begin((Start)) --> collect[Collect the text]
    collect --> split[Start the readers]

    split --> facts[Facts]
    split --> style_reader[Style]

    facts --> report[One report]
    style_reader --> report

    report --> editor{{Editor}}

    editor -->|accept| answer[Write the answer]
    editor -->|revise| collect
    editor -->|more_facts| collect

    answer --> finish((End))

    classDef human fill:#f39c12,stroke:#f39c12,color:#000
    class editor human
```

## Nodes

### collect

---
description: "Collect what is read"
mode: subagent
model: anthropic/claude-sonnet-4-20250514
temperature: 0.1

tools:
  read: true
  glob: true

input:
  userInput: "{{state.input}}"

output:
  key: "text"

config:
  timeout: 30000
---

Collect the text of {{state.input}}.

### split

---
mode: primary
model: anthropic/claude-sonnet-4-20250514
temperature: 0.1
---

The text was collected. Two readers start now.

### facts

---
model: anthropic/claude-sonnet-4-20250514
temperature: 0.1
tools:
  read: true
input:
  text: "{{state.text}}"
output:
  key: "facts_result"
---

Read for facts:

{{state.text}}

## What to write

### Wrong

### Doubtful

### style_reader

---
temperature: 0.2
output:
  key: "style_result"
---

Read for style: {{state.text}}

### report

---
temperature: 0.2
input:
  facts: "{{state.facts_result}}"
  style: "{{state.style_result}}"
output:
  key: "report"
---

Make one report of what two readers have found.

### editor

---
description: "The editor decides"
timeout: 86400000
onTimeout: "answer"

options:
  - label: "Accept"
    value: "accept"
    description: "It is printed"
  - label: "Revise"
    value: "revise"
  - label: "More facts"
    value: "more_facts"

allowCustomInput: true

output:
  key: "decision"
---

## Paper - your decision

### The report

{{state.report}}

---

- **Accept**: it is printed

You may also write what you want.

### answer

---
temperature: 0.3
output:
  key: "letter"
---

Write the answer: {{state.decision}}
"""
LOOP = """\
---
id: "until-done"
entrypoint: "prepare"
state: {task: "", promise: "FINISHED", round: null, status: null}
config: {timeout: 600000, maxIterations: 5}
onError: "sum"
---

## Flow

```mermaid
flowchart TD
    begin((Start)) --> prepare[Prepare]
    prepare --> work[Work]
    work --> look[Look]
    look -->|done| sum[Sum up]
    look -->|continue| work
    sum --> finish((End))
```

### prepare
---
model: anthropic/claude-sonnet-4-20250514
temperature: 0.2
---
Prepare {{state.task}}. It ends with {{state.promise}}.

### work
---
temperature: 0.2
output: {key: "round"}
---
Work on it.

### look
---
temperature: 0
input:
  result: "{{state.round}}"
  promise: "{{state.promise}}"
output: {key: "status"}
---
Does the promise appear in the result? Output only one word: done or continue.

### sum
---
temperature: 0.3
---
Sum up.
"""


def answer_with(folder: Path, **answers: list[str]) -> None:
    (folder / "answers.json").write_text(json.dumps(answers))


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Return a folder with published flows and nothing else."""
    project = tmp_path / "project"
    flows = project / ".opencode" / "workflows"
    flows.mkdir(parents=True)
    (flows / "paper-check.md").write_text(PAPER)
    (flows / "until-done.md").write_text(LOOP)
    (flows / "README.md").write_text("# Flows\n\n```mermaid\nflowchart TD\n  a --> b\n```\n")
    answer_with(project)
    return project


def typed(project: Path, client: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``sequencer ARGUMENTS`` where *client* is the only agent on PATH."""
    programs = project.parent / client
    programs.mkdir(exist_ok=True)
    (programs / client).write_text(CLIENT)
    (programs / client).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return cli_process.cli(
        project, *arguments, PATH=path, HOME=str(project.parent), ANTHROPIC_API_KEY=""
    )


def asked(project: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (project / "asked.jsonl").read_text().splitlines()]


def prompt_of(project: Path, step: str) -> str:
    return next(str(one["prompt"]) for one in reversed(asked(project)) if one["step"] == step)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["claude", "opencode"])
def test_a_published_flow_is_checked_and_run_as_it_is(published: Path, client: str) -> None:
    checked = typed(published, client, "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "W-ANSWER editor: any text is an answer, but no edge takes one" in checked.stdout
    wrong = r"agent claude(, .*)?: it does not support temperature"
    assert bool(re.search(wrong, checked.stdout)) is (client == "claude")
    assert "README" not in checked.stdout
    simulated = typed(published, client, "plan", "--simulate", "paper-check")
    assert simulated.stdout.splitlines()[-1].endswith("done finish")

    ran = typed(published, client, "run", "paper-check", "--state", "input=the paper")
    assert ran.returncode == 4, ran.stderr
    unsupported = "notice: agent 'claude' does not support temperature"
    assert (unsupported in ran.stderr) is (client == "claude")
    gates = typed(published, client, "inbox").stdout
    assert "## Paper - your decision" in gates
    assert "report is done" in gates
    assert "any other text: no edge takes it, so the node would fail" in gates
    (gate,) = json.loads(typed(published, client, "inbox", "--json").stdout)
    assert (gate["free_text"], gate["free_text_fails"]) == (True, True)

    assert typed(published, client, "answer", "editor", "more facts").returncode == 0
    again = typed(published, client, "run", "paper-check")
    assert again.returncode == 4
    assert "starts" not in again.stderr
    assert "does not support" not in again.stderr, "it was said when the run started"
    assert typed(published, client, "answer", "editor", "Accept").returncode == 0
    assert typed(published, client, "run", "paper-check").returncode == 0
    steps = [one["step"] for one in asked(published)]
    assert (steps[:2], steps[4], steps[-1]) == (["collect", "split"], "report", "answer")
    assert sorted(steps[2:4]) == ["facts", "style_reader"]
    assert len(steps) == 11

    facts = prompt_of(published, "facts")
    assert facts.endswith("collect is done\n\n## What to write\n\n### Wrong\n\n### Doubtful")
    report = prompt_of(published, "report")
    assert "# Input\n\n## facts\n\nfacts is done\n\n## style\n\nstyle_reader is done" in report
    assert prompt_of(published, "answer") == "Write the answer: accept"


@pytest.mark.slow
def test_a_published_loop_ends_when_its_promise_is_there(published: Path) -> None:
    answer_with(published, work=["half of it", "all of it\nFINISHED"], look=["Continue.", "done"])
    ran = typed(published, "claude", "run", "until-done", "--state", "task=counting")
    assert ran.returncode == 0, ran.stderr
    steps = [one["step"] for one in asked(published)]
    assert steps == ["prepare", "work", "look", "work", "look", "sum"]
    assert prompt_of(published, "look").endswith(
        "# Input\n\n## result\n\nall of it\nFINISHED\n\n## promise\n\nFINISHED"
    )


def test_a_readme_is_never_a_flow(published: Path) -> None:
    refused = typed(published, "claude", "run", "README")
    assert refused.returncode == 2
    assert "describes its folder and is not a workflow" in refused.stderr


# --- what is said ----------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def test_a_run_reports_all_faults_of_a_flow_at_once(project: Path) -> None:
    sections = {"a": "---\nagent: nobody\n---\nSay a", "b": "---\nmodel: x/y\n---\nSay b"}
    write_flow(project, "wrong", "a --> b --> c", a=sections["a"], b=sections["b"], c="Say c")
    ran = cli_process.cli(project, "run", "wrong")
    checked = cli_process.cli(project, "check")
    assert ran.returncode == checked.returncode == 2
    told = [line for line in ran.stderr.splitlines() if line.startswith("error:")]
    assert [line.partition("wrong.md:")[2] for line in told] == [
        "10:1: unknown agent 'nobody'",
        "16:1: agent 'script' (kind command) does not support model, provider",
    ]
    found = [line for line in checked.stdout.splitlines() if "wrong.md" in line]
    assert [line.partition("wrong.md:")[2] for line in found] == [
        line.partition("wrong.md:")[2] for line in told
    ]
    assert not (project / "sync").exists()


def test_a_client_missing_for_all_nodes_is_reported_once(project: Path) -> None:
    write_flow(project, "none", "a --> b --> c", a="Say a", b="Say b", c="Say c")
    (project / "orchestration.yaml").write_text("{agent: {default: auto}}")
    for verb, where in (("run", ""), ("check", " and 5 more places: ")):
        ended = cli_process.cli(project, verb, *["none"] * (verb == "run"), PATH="/nowhere")
        told = [line for line in (ended.stdout + ended.stderr).splitlines() if "is on PATH" in line]
        assert ended.returncode == 2
        assert len(told) == 1
        assert f"{where}agent 'auto': none of claude" in told[0]


def test_a_time_limit_error_uses_the_words_of_the_file(project: Path) -> None:
    (project / "agent.py").write_text(
        (project / "agent.py")
        .read_text()
        .replace(
            'if "please fail"',
            'if "slow" in text:\n    __import__("time").sleep(60)\nif "please fail"',
        )
    )
    front = "onError: h\n"
    write_flow(
        project, "late", "a --> b\nh", front, a="---\ntimeout: 300\n---\nslow",
        b="Say b", h="Say {{state._error}}",
    )  # fmt: skip
    ran = cli_process.cli(project, "run", "late")
    assert ran.returncode == 1
    assert "timed out after 300 ms" in ran.stderr
    assert "raise timeout (in milliseconds) of node 'a'" in ran.stderr
    facts = cli(project, "--run", "late", "history", "--json").stdout.splitlines()
    (handled,) = [
        json.loads(fact) for fact in facts if '"succeeded"' in fact and '"step": "h"' in fact
    ]
    assert json.loads(handled["outcome"]["output"])["type"] == "timeout"


@pytest.mark.slow
def test_a_run_that_ends_names_what_it_cancelled(project: Path) -> None:
    (project / "agent.py").write_text(
        "import os, time\n"
        "step = os.environ['SEQUENCER_STEP']\n"
        "if step == 'b':\n    time.sleep(60)\n"
        "print('again' if step == 'a' else 'fine')\n"
        "raise SystemExit(step == 'x')\n"
    )
    ends = {
        "failed": ("s --> x & b", "", "fail x attempt 1: exit code 1 fine; cancelled b"),
        "handled": ("s --> x & b\nh", "onError: h\n", "onError -> h; cancelled b"),
        "looped": (
            "s --> a & b\na -->|again| a\na -->|done| h",
            "config: {maxIterations: 1}\n",
            "maxIterations 1 exceeded at a -> a; cancelled b",
        ),
    }
    for name, (chart, front, line) in ends.items():
        sections = {node: f"Say {node}" for node in "sabxh" if node in chart}
        write_flow(project, name, chart, front, **sections)
        assert cli_process.cli(project, "run", name).returncode == 1
        assert line in trace(project, name), name
        shown = cli(project, "--run", name, "status").stdout
        assert "cancelled" in next(row for row in shown.splitlines() if row.startswith("b "))


def test_history_reports_that_an_answer_was_cut(project: Path) -> None:
    (project / "agent.py").write_text("print('x' * 100_000)\n")
    write_flow(project, "long", "a", a="Say a")
    assert cli_process.cli(project, "run", "long").returncode == 0
    assert (
        "its answer of 97.7 KiB was cut; the end is kept"
        in cli(project, "--run", "long", "history").stdout
    )
    (done,) = [
        json.loads(fact)
        for fact in cli(project, "--run", "long", "history", "--json").stdout.splitlines()
        if '"succeeded"' in fact
    ]
    assert done["outcome"]["output_cut_from"] == 100_001


# --- teams -----------------------------------------------------------------------------------


def test_a_researcher_has_the_tools_that_the_docs_name(published: Path) -> None:
    (published / "orchestration.yaml").write_text(
        "workflow: {name: crew}\nworkflows:\n  crew:\n    tasks:\n"
        "      - {id: look, subject: Look, role: researcher}\n"
    )
    assert typed(published, "claude", "run").returncode == 0
    (only,) = asked(published)
    lists = dict(one.split("=", 1) for one in only["argv"] if "Tools=" in one)
    assert lists["--allowedTools"].split(",") == ["Read", "Glob", "Grep"]
    assert {"Write", "Edit", "Bash"} <= set(lists["--disallowedTools"].split(","))


def test_a_budget_that_ends_a_team_hides_no_failed_task(tmp_path: Path) -> None:
    tasks: list[dict[str, Any]] = [
        {"id": "bad", "subject": "Bad"},
        {"id": "dear", "subject": "Dear"},
        {"id": "next", "subject": "Next", "blocked_by": ["dear"]},
    ]
    plan: dict[str, Any] = {"bad": {"exit": 1}, "dear": {"usage": {"cost_usd": 1.0}}}
    budget = {"budget": {"max_cost_usd": 1.0}}
    project = team_projects.make_project(tmp_path, tasks, plan, teams=budget)
    ran = cli_process.cli(project, "run")
    assert ran.returncode == 1, ran.stderr
    both = r"task 'bad' failed: exit code 1\b.*; the team has used 1\.0000 of 1 USD"
    assert re.search(both, ran.stderr, re.DOTALL), ran.stderr
    (project / "agent.json").write_text(json.dumps({"dear": plan["dear"]}))
    assert cli_process.cli(project, "retry").returncode == 0
    again = cli_process.cli(project, "run", "--json")
    assert again.returncode == 0, "a budget alone is no failure"
