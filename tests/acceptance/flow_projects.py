"""Projects with flowcharts whose agents are a script, and the command line called on them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.unit.cli.calling import call

AGENT = """\
import os, sys
text = sys.stdin.read()
with open("asked.txt", "a") as file:
    file.write(os.environ["SEQUENCER_STEP"] + ": " + " ".join(text.split()) + "\\n")
if "please fail" in text:
    print("it broke", file=sys.stderr)
    raise SystemExit(1)
print(text.split("Say ")[-1].strip())
"""
CONFIGURATION = """\
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py]}
"""
REVIEW = """\
---
id: review
name: Review
state:
  who: nobody
  notes: {text: ""}
---

# Review

```mermaid
flowchart TD
  draft[Draft] --> prose & facts
  prose & facts --> join((All))
  join --> fine{{Fine?}}
  fine -->|approve| publish
  fine -->|"send back"| draft
  fine -->|default| note
  publish & note --> done((Done))
```

### draft
Say a draft for {{state.who}}

### prose
Say prose of {{output}}

### facts
---
output:
  key: notes.text
---
Say facts

### fine
---
options:
  - {label: Looks good, value: approve, description: It goes out}
  - send back
allowCustomInput: true
---
Is "{{nodes.draft.output}}" fine? Notes: {{state.notes.text}}

### publish
Say published

### note
Say noted {{output}}
"""


def make_project(folder: Path) -> Path:
    """Write a project with the flow ``review``."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "orchestration.yaml").write_text(CONFIGURATION)
    (folder / "flows").mkdir()
    (folder / "flows" / "review.md").write_text(REVIEW)
    return folder


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``sequencer ARGUMENTS`` in this process: most of a process's time is its start."""
    called = call(folder, *arguments)
    return subprocess.CompletedProcess(arguments, called.code, called.out, called.err)


def write_flow(project: Path, name: str, chart: str, front: str = "", **prompts: str) -> None:
    """Write flows/NAME.md; each of *prompts* is a node's section."""
    sections = "".join(f"### {node}\n{text}\n\n" for node, text in prompts.items())
    text = f"---\nid: {name}\n{front}---\n\n```mermaid\nflowchart TD\n{chart}\n```\n\n{sections}"
    (project / "flows" / f"{name}.md").write_text(text)


def asked(project: Path) -> list[str]:
    """Return what the agents were told, in order."""
    path = project / "asked.txt"
    return path.read_text().splitlines() if path.exists() else []


def as_json(ended: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(ended.stdout)


def trace(project: Path, run: str) -> list[str]:
    """Return the lines of `history`, without revisions, times and costs."""
    printed = cli(project, "--run", run, "history").stdout.splitlines()[1:]
    columns = (line[39:].split("  ")[0].strip() for line in printed)
    return [text for text in columns if text]
