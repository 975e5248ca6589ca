"""Projects to look at: what a person may meet on the pages, made by real runs of stand-in agents.

As a program: ``python -m tests.web.sample FOLDER`` makes them in FOLDER, for a server to show.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sequencer import InvocationLimits, SequencerError, commands, open_project

AGENT = """
import json, os, sys, time
prompt = sys.stdin.read()
step, attempt = os.environ["SEQUENCER_STEP"], int(os.environ["SEQUENCER_ATTEMPT"])
pace = float(open("pace").read()) if os.path.exists("pace") else 0.002
pace *= (len(step) % 5 + 1) / 3
print(f"reads the prompt, {len(prompt.split())} words")
for line in range(6):
    print(f"\\x1b[32mworks\\x1b[0m on {step}: part {line + 1} of 6 <b>&amp;</b>", flush=True)
    time.sleep(pace)
if step == "tests" and attempt == 1 and not os.path.exists("fixed"):
    open("fixed", "w").close()
    sys.exit("2 tests fail: test_login, test_logout")
if step == "judge":
    verdict = {"pass": os.path.exists("judged"), "reason": "a link on page 2 is dead"}
    open("judged", "w").close()
    with open(os.environ["SEQUENCER_RESULT"], "w", encoding="utf-8") as file:
        json.dump({"usage": {"input_tokens": 900, "output_tokens": 60, "cost_usd": 0.008}}, file)
    print(json.dumps(verdict))
    sys.exit(0)
if step == "deploy":
    sys.exit("the server at deploy.example says 503")
weight = 1 + len(step)
words = {
    "collect": "The login timeout moves into the settings; three files change.",
    "correctness": "auth.py:14: the limit is off by one.",
    "security": "auth.py:41: a token is logged.",
    "tests": "<script>alert(1)</script> is shown as it is.\\n\\nBoth tests pass now.",
    "report": "May not be merged yet: a token is logged in auth.py:41.\\n"
    "Two findings must change, three should.",
}
said = {
    "status": "ok",
    "output": words.get(step, f"{step} is done."),
    "usage": {"input_tokens": 1200 * weight, "output_tokens": 160 * weight,
              "cache_read_tokens": 900 * weight, "cost_usd": 0.011 * weight},
}
with open(os.environ["SEQUENCER_RESULT"], "w", encoding="utf-8") as file:
    json.dump(said, file)
"""

SETTINGS = f"""
workflow: {{name: loop, review_every_n: 3}}
agent: {{default: hand}}
agents:
  hand: {{kind: command, argv: [{sys.executable!r}, agent.py], free: false}}
  eye: {{kind: command, argv: [{sys.executable!r}, agent.py], free: false}}
limits: {{max_steps: 400}}
workflows:
  loop: {{steps: [supervisor, main], review: {{step: reviewer}}}}
  ship:
    kind: procedure
    steps: [plan, build, {{name: tests, retry: {{max_attempts: 2, initial_delay_s: 0}}}},
            {{name: publish, requires_approval: true}}, announce]
  polish:
    kind: procedure
    steps:
      - draft
      - {{name: judge, agent: eye, validation: {{max_attempts: 3, fixer: {{name: fix}}}}}}
      - print
  nightly: {{kind: procedure, steps: [collect, deploy, report]}}
  code-review: code-review.md
"""

FLOW = """---
id: code-review
name: Code review
version: 1
retry: {maxAttempts: 2, initialDelay: 0}
---

```mermaid
flowchart TD
    collect[Collect the change] --> correctness[Does it work?]
    collect --> security[Can it be abused?]
    collect --> tests[Do the tests pass?]
    correctness & security & tests --> report[Write one report]
    report --> decide{{Is the report right?}}
    decide -->|approve| publish[Write review.md]
    decide -->|send back| feedback{{What should change?}}
    decide -->|drop| dropped((Dropped))
    feedback --> report
    publish --> done((Done))
```

### decide
---
description: Nothing is published before a person has read it.
options:
  - label: approve
    description: Write it to review.md as it is.
  - label: send back
    description: Say what should change; the report is written again.
  - label: drop
    description: No review is written.
---
{{output}}

Is this report right?

### feedback
---
description: Goes into the next version of the report.
---
What should be different in the report?
"""
AGENT_NODES = ("collect", "correctness", "security", "tests", "report", "publish")
PROMPTS = {
    "supervisor": "Look at the plan in `plan.md`.\n\nSay what comes next in one sentence.\n",
    "main": "Do what the supervisor said:\n\n{{output}}\n",
}
STEPS = (*PROMPTS, "reviewer", "plan", "build", "tests", "publish", "announce")


def make_project(folder: Path) -> Path:
    """Make a project in *folder* that has begun no run."""
    (folder / "prompts").mkdir(parents=True)
    (folder / "orchestration.yaml").write_text(SETTINGS, encoding="utf-8")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    nodes = "".join(f"\n### {name}\nDo {name}.\n" for name in AGENT_NODES)
    (folder / "code-review.md").write_text(FLOW + nodes, encoding="utf-8")
    for name in (*STEPS, "collect", "deploy", "report", "draft", "judge", "fix", "print"):
        text = PROMPTS.get(name, f"Do the {name} of this change, and say what you did.\n")
        (folder / "prompts" / f"{name}.md").write_text(text, encoding="utf-8")
    return folder


def work(folder: Path, name: str | None, workflow: str, steps: int) -> None:
    """Let the run called *name* of *workflow* make at most *steps* steps."""
    variables = {**os.environ, "SEQUENCER_WORKFLOW__NAME": workflow}
    run = open_project(folder, environment=variables, trust=True).run(name)
    try:
        run.work(limits=InvocationLimits(max_steps=steps))
    except SequencerError:
        return


def make_all(folder: Path, pace_s: float = 0.002) -> list[Path]:
    """Make two projects with runs in every state, and return their folders.

    Their agents wait *pace_s* after each line that they print.
    """
    shop, docs = make_project(folder / "shop"), make_project(folder / "docs")
    for each in (shop, docs):
        (each / "pace").write_text(str(pace_s))
    work(shop, None, "loop", 9)
    work(shop, "login-timeout", "code-review", 20)
    work(shop, "release-1.4", "ship", 10)
    work(shop, "release-1.3", "ship", 10)
    open_project(shop, trust=True).run("release-1.3").do(commands.Approve(), by="ada")
    work(shop, "release-1.3", "ship", 3)
    work(docs, "nightly", "nightly", 3)
    work(docs, "polish", "polish", 4)
    work(docs, None, "loop", 4)
    open_project(docs, trust=True).run(None).do(commands.Pause())
    return [shop, docs]


if __name__ == "__main__":
    print(*make_all(Path(sys.argv[1])), sep="\n")
