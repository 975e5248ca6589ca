"""Each of the seven hook points changes what it should, from the command line to the agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cli_process import cli

AGENT = """\
import json, os, sys
with open("seen.jsonl", "a") as file:
    told = {"step": os.environ["SEQUENCER_STEP"], "prompt": sys.stdin.read(), "argv": sys.argv[1:]}
    file.write(json.dumps(told) + "\\n")
print("done")
"""
CONFIGURATION = """\
hooks: [hooks.py]
agent: {default: script}
agents:
  script: {kind: command, argv: ["{python}", -IS, agent.py, "--model={model}"]}
workflows:
  mine: {kind: procedure, steps: [first, {name: second, model: small}, third]}
  other: {kind: procedure, steps: [first]}
routing: {fallback: mine, classifier: rules}
"""
HEAD = "from pathlib import Path\nfrom sequencer import Decision, Move, hookimpl\n\n@hookimpl\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "prompts").mkdir()
    for name in ("first", "second", "third", "extra"):
        (tmp_path / "prompts" / f"{name}.md").write_text(f"Do {name} for {{{{request.title}}}}.\n")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "orchestration.yaml").write_text(CONFIGURATION)
    return tmp_path


def run(project: Path, hook: str, *, code: int = 0) -> list[dict[str, Any]]:
    """Start a request under *hook* and return what the agent has seen."""
    (project / "hooks.py").write_text(HEAD + hook)
    ended = cli(project, "--run", "one", "start", "Xyzzy", "--label", "odd")
    assert ended.returncode == code, ended.stderr
    seen = project / "seen.jsonl"
    return [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []


def steps(seen: list[dict[str, Any]]) -> list[str]:
    return [one["step"] for one in seen]


def test_a_hook_that_returns_none_changes_nothing(project: Path) -> None:
    seen = run(project, "def sequencer_prompt(context, text):\n    return None\n")
    assert steps(seen) == ["first", "second", "third"]
    assert [one["prompt"] for one in seen][1] == "Do second for Xyzzy.\n"
    assert [one["argv"] for one in seen] == [[], ["--model=small"], []]


def test_the_procedure(project: Path) -> None:
    hook = "def sequencer_procedure(request, chosen):\n"
    hook += "    return 'other' if 'odd' in request.labels and chosen == 'mine' else None\n"
    assert steps(run(project, hook)) == ["first"]
    told = json.loads(cli(project, "plan", "--request", "Xyzzy", "--label", "odd", "--json").stdout)
    assert (told["procedure"], told["source"]) == ("other", "hook")


def test_the_prompt(project: Path) -> None:
    hook = "def sequencer_prompt(context, text):\n"
    hook += "    return text.upper().replace('REQUEST.TITLE', 'request.title')\n"
    assert run(project, hook)[0]["prompt"] == "DO FIRST FOR Xyzzy.\n"


def test_the_model(project: Path) -> None:
    hook = "def sequencer_model(context, model):\n"
    hook += "    return 'large' if 'odd' in context.labels and model is None else None\n"
    seen = run(project, hook)
    models = [one["argv"][0].removeprefix("--model=") for one in seen]
    assert models == ["large", "small", "large"]


def test_the_transition(project: Path) -> None:
    hook = "def sequencer_transition(context, outcome):\n"
    hook += "    if context.step.name == 'first' and context.attempt < 3:\n"
    hook += "        return Decision(Move.RETRY)\n"
    hook += "    return Decision(Move.SKIP) if context.step.name == 'first' else None\n"
    assert steps(run(project, hook)) == ["first", "first", "first", "third"]


def test_a_hook_that_skips_after_the_last_step_completes_the_run(project: Path) -> None:
    hook = "def sequencer_transition(context, outcome):\n"
    hook += "    return Decision(Move.SKIP) if context.step.name == 'third' else None\n"
    assert steps(run(project, hook)) == ["first", "second", "third"]
    assert json.loads(cli(project, "--run", "one", "status", "--json").stdout)["status"] == (
        "complete"
    )


@pytest.mark.slow
def test_a_hook_adds_a_gate(project: Path) -> None:
    hook = "def sequencer_transition(context, outcome):\n"
    hook += "    return Decision(Move.GATE) if context.step.name == 'second' else None\n"
    assert steps(run(project, hook, code=4)) == ["first", "second"]
    assert cli(project, "answer", "approve").returncode == 0
    assert cli(project, "--run", "one", "run").returncode == 0


@pytest.mark.slow
def test_approval_completes_a_run_whose_gated_step_a_hook_calls_complete(project: Path) -> None:
    gated = CONFIGURATION.replace("model: small}", "model: small, requires_approval: true}", 1)
    (project / "orchestration.yaml").write_text(gated)
    hook = "def sequencer_transition(context, outcome):\n"
    hook += "    return Decision(Move.COMPLETE) if context.step.name == 'second' else None\n"
    assert steps(run(project, hook, code=4)) == ["first", "second"]
    assert "approval completes the run" in cli(project, "inbox").stdout
    waiting = json.loads(cli(project, "inbox", "--json").stdout)
    assert [row["completes_run"] for row in waiting] == [True]
    assert cli(project, "answer", "approve").returncode == 0
    status = json.loads(cli(project, "--run", "one", "status", "--json").stdout)
    assert (status["status"], status["step_index"]) == ("complete", 2)


def test_the_completion(project: Path) -> None:
    hook = "def sequencer_completed(context, head):\n"
    hook += "    Path(context.project, 'told').write_text(f'{head.step_index} {head.status}')\n"
    run(project, hook)
    assert (project / "told").read_text() == "3 complete"


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "hook",
    [
        "def sequencer_prompt(context, text):\n    raise RuntimeError('boom')\n",
        "def sequencer_model(context, model):\n    return '-x'\n",
        "def sequencer_transition(context, outcome):\n    return Decision(Move.GOTO, 'nowhere')\n",
        "def sequencer_transition(context, outcome):\n    return 'next'\n",
    ],
)
def test_a_hook_that_is_wrong_fails_the_step_and_nothing_else(hook: str, project: Path) -> None:
    run(project, hook, code=1)
    status = json.loads(cli(project, "--run", "one", "status", "--json").stdout)
    assert (status["status"], status["step_index"]) == ("failed", 0)
    log = cli(project, "--run", "one", "log", "--lines", "0").stdout
    assert "hooks.py" in log or "hook" in status["status"] + log
    mended = "def sequencer_prompt(context, text):\n    return None\n"
    (project / "hooks.py").write_text(HEAD + mended)
    assert cli(project, "--run", "one", "run").returncode == 0
