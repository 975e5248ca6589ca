"""Runs of every kind: what is set, what agents answer, and which commands are given.

An agent is a script: for the k-th attempt at a step it runs ``answers/STEP.k``, else
``answers/STEP``, else it says the step's name. What a command is expected to exit with stands
in front of it where that is not 0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AGENT = """\
mkdir -p ran
n=$(($(cat "ran/$SEQUENCER_STEP" 2>/dev/null || echo 0) + 1))
echo $n > "ran/$SEQUENCER_STEP"
for f in "answers/$SEQUENCER_STEP.$n" "answers/$SEQUENCER_STEP"; do
  if [ -f "$f" ]; then . "./$f"; exit $?; fi
done
echo "$SEQUENCER_STEP"
"""
PRICED = (
    """printf '{"status": "ok", "usage": {"cost_usd": 0.5, "input_tokens": 10}}' """
    """> "$SEQUENCER_RESULT"; echo paid"""
)


@dataclass(frozen=True)
class Story:
    """One run, as it is set up and worked on."""

    settings: dict[str, Any]
    commands: tuple[str, ...]
    cut: int
    """After so many commands the recorded run is continued by the program under test."""
    answers: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def make(self, folder: Path) -> None:
        """Set the project up in *folder*."""
        settings = {
            "agent": {"default": "script"},
            "agents": {"script": {"kind": "command", "argv": ["sh", "agent.sh"]}},
            **self.settings,
        }
        files = {
            "orchestration.yaml": json.dumps(settings),
            "agent.sh": AGENT,
            **{f"answers/{name}": text + "\n" for name, text in self.answers.items()},
            **self.files,
        }
        for name in ("supervisor", "main", "reviewer", "one", "two", "three", "judge", "fix"):
            files.setdefault(f"prompts/{name}.md", f"{name}\n")
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")


def flow(chart: str, *, front: str = "", sections: str = "") -> dict[str, str]:
    """Return the file of a flowchart with *chart*."""
    text = f"---\nid: flow\n{front}---\n\n```mermaid\nflowchart TD\n{chart}\n```\n\n{sections}"
    return {"flows/flow.md": text}


FAILS = "echo no; exit 1"
NO = """printf '{"pass": false, "reason": "not yet"}'"""
YES = """printf '{"pass": true, "reason": "fine"}'"""
_NEVER = {"max_attempts": 3, "initial_delay_s": 0}

STORIES: dict[str, Story] = {
    "cycle": Story(
        {"workflow": {"name": "review_cadence", "review_every_n": 2}},
        (
            "1:run --max-steps 3 --quiet",
            "stop --pause",
            "run --quiet",
            "resume",
            "run --max-steps 4 --quiet",
            "skip --as-done --note looked",
            "run --max-cycles 1 --quiet",
            "skip --note later",
            "stop --reason enough",
            "run --quiet",
            "resume",
            "rewind 2",
            "tick",
            "set step_index=7",
            "run --mode sync --position main --max-steps 1 --max-wait 0 --quiet",
            "75:run --mode sync --position main --max-steps 1 --max-wait 0 --quiet",
            "tick --position supervisor",
            "reset --yes",
            "run --max-steps 2 --quiet",
        ),
        cut=5,
        answers={"reviewer.1": FAILS, "main.2": PRICED},
    ),
    "retries": Story(
        {
            "workflow": {"name": "w"},
            "workflows": {"w": {"steps": [{"name": "one", "retry": _NEVER}, "two"]}},
            "limits": {"failures_in_row": 4, "steps": 5, "cost_usd": 1.2},
        },
        (
            "run --max-steps 2 --quiet",
            "1:run --max-steps 2 --quiet",
            "1:run --max-steps 2 --quiet",
            "retry",
            "run --max-steps 1 --quiet",
            "run --max-steps 9 --quiet",
        ),
        cut=2,
        answers={
            "one.1": FAILS,
            "one.2": FAILS,
            "two.1": PRICED,
            **{f"one.{k}": FAILS for k in range(4, 9)},
            "one.9": PRICED,
            "two": PRICED,
        },
    ),
    "procedure": Story(
        {
            "workflow": {"name": "p"},
            "workflows": {
                "p": {
                    "kind": "procedure",
                    "steps": [
                        "one",
                        {
                            "name": "judge",
                            "validation": {"fixer": {"name": "fix"}, "max_attempts": 3},
                        },
                        {"name": "two", "requires_approval": True},
                        "three",
                    ],
                }
            },
        },
        (
            "run --max-steps 2 --quiet",
            "4:run --quiet",
            "answer 'say more'",
            "4:run --quiet",
            "4:tick",
            "answer approve --note fine",
            "run --quiet",
            "run --quiet",
            "rewind 3",
            "run --quiet",
        ),
        cut=3,
        answers={"judge.1": NO, "judge.2": NO, "judge": YES},
    ),
    "rejected": Story(
        {
            "workflow": {"name": "p"},
            "workflows": {
                "p": {
                    "kind": "procedure",
                    "steps": [
                        "one",
                        {
                            "name": "judge",
                            "validation": {"max_attempts": 2, "on_exhausted": "continue"},
                        },
                        {"name": "two", "requires_approval": True},
                        "three",
                    ],
                }
            },
        },
        ("run --max-steps 1 --quiet", "4:run --quiet", "answer reject --note no", "run --quiet"),
        cut=1,
        answers={"judge": NO},
    ),
    "done": Story(
        {
            "workflow": {"name": "w"},
            "workflows": {"w": {"steps": [{"name": "one", "complete_when": "ALL DONE"}, "two"]}},
        },
        ("run --max-steps 3 --quiet", "run --quiet", "run --quiet", "3:adopt", "reset --yes"),
        cut=1,
        answers={"one.3": "echo ALL DONE"},
    ),
    "killed": Story(
        {
            "workflow": {"name": "standard"},
            # It kills its sequencer.
            "agents": {"script": {"kind": "command", "argv": ["sh", "agent.sh"], "wall": "none"}},
        },
        (
            "run --max-steps 1 --quiet",
            "-9:run --max-steps 1 --quiet",
            "takeover --force",
            "run --max-steps 2 --quiet",
        ),
        cut=2,
        answers={"main.1": "kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); sleep 9"},
    ),
    "named": Story(
        {"routing": {"classifier": "rules"}},
        (
            "--run r start 'How does the parser work?' --no-run",
            "--run r run --max-steps 1 --quiet",
            "--run r run --quiet",
        ),
        cut=2,
    ),
    "flow": Story(
        {},
        (
            "run flow --quiet --max-parallel 1 --max-steps 1",
            "4:run flow --quiet --max-parallel 1",
            "--run flow answer ask again",
            "4:run flow --quiet --max-parallel 1",
            "--run flow answer ask yes",
            "1:run flow --quiet --max-parallel 1",
            "--run flow retry",
            "run flow --quiet --max-parallel 1",
        ),
        cut=3,
        answers={"last.1": FAILS, "b.1": PRICED},
        files=flow(
            "a --> b & c\nb & c --> e --> d{which}\nd -->|e| ask{{Good?}}\nd -->|else| last\n"
            "ask -->|yes| last\nask -->|again| a",
            sections="### a\nx\n\n### b\nx\n\n### c\nsee {{steps.a.output}}\n\n### e\nx\n\n"
            "### last\nx\n",
        ),
    ),
    "diverted": Story(
        {},
        (
            "run flow --quiet --max-parallel 1 --max-steps 1",
            "1:run flow --quiet --max-parallel 1",
            "run flow --new --quiet --max-parallel 1",
        ),
        cut=1,
        answers={"b.1": FAILS, "b.2": FAILS},
        files=flow(
            "a --> b --> z\nundo --> y",
            front="onError: undo\nretry: {maxAttempts: 2, backoff: fixed, initialDelay: 0}\n",
            sections="### a\nx\n\n### b\nx\n\n### z\nx\n\n### undo\nx\n\n### y\nx\n",
        ),
    ),
    "wide": Story(
        {},
        (
            "run flow --quiet --max-parallel 1 --max-steps 3",
            "--run flow tick",
            "--run flow stop --pause",
            "run flow --quiet --max-parallel 1",
            "--run flow resume",
            "run flow --quiet --max-parallel 1 --max-steps 1",
            "--run flow answer reject --note enough",
        ),
        cut=2,
        files=flow(
            "a --> b & c & d & e\nb & c & d & e --> f",
            sections="".join(f"### {name}\nx\n\n" for name in "abcdef"),
        ),
    ),
    "team": Story(
        {
            "workflows": {
                "t": {
                    "size": 1,
                    "tasks": [
                        {"id": "plan", "subject": "Plan", "adds": "tasks", "text": "x"},
                        {"id": "build", "subject": "Build", "text": "x", "blocked_by": ["plan"]},
                        {
                            "id": "check",
                            "subject": "Check",
                            "text": "x",
                            "blocked_by": ["build"],
                            "validation": {
                                "max_attempts": 3,
                                "fixer": {"name": "fix", "text": "x"},
                            },
                        },
                        {"id": "sum", "subject": "Sum", "text": "x", "blocked_by": ["check"]},
                    ],
                }
            },
        },
        (
            "run t --quiet --max-steps 1",
            "--run t tell build 'mind the gap'",
            "run t --quiet --max-steps 2",
            "1:run t --quiet",
            "--run t retry",
            "run t --quiet",
        ),
        cut=3,
        answers={
            "plan": """printf '{"tasks": [{"id": "api", "subject": "Route", "description": "do"},"""
            """ {"id": "try", "subject": "Try", "description": "do", "blocked_by": ["api"]}]}'""",
            "check.1": NO,
            "check.2": NO,
            "check": YES,
            "sum.1": FAILS,
            "build.1": PRICED,
        },
    ),
}
