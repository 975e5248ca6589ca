"""Every command in every state of every kind of run: what is allowed, with which facts or words."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from sequencer.engine.invocation_budget import Mode
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.model.commands import (
    Accept,
    Adopt,
    AnswerQuestion,
    Approve,
    Fail,
    Feedback,
    Pause,
    Reject,
    Reset,
    Resume,
    RetryNow,
    Rewind,
    RunCommand,
    SetField,
    Skip,
    SkipTo,
    StartAt,
    Stop,
    StopNow,
    TakeOver,
    Tell,
)
from sequencer.model.limits import InvocationLimits
from sequencer.project.flows import resolve_run
from sequencer.project.project import open_project

COMMANDS: Mapping[str, RunCommand] = {
    "approve": Approve("note"),
    "reject": Reject("note"),
    "feedback": Feedback("text"),
    "answer q yes": AnswerQuestion("q", "yes"),
    "answer q maybe": AnswerQuestion("q", "maybe"),
    "answer a yes": AnswerQuestion("a", "yes"),
    "tell": Tell("hurry"),
    "tell a": Tell("hurry", "a"),
    "tell zzz": Tell("hurry", "zzz"),
    "retry": RetryNow(),
    "retry a": RetryNow("a"),
    "skip": Skip("later"),
    "skip a": Skip("later", "a"),
    "skip zzz": Skip("later", "zzz"),
    "accept": Accept("done"),
    "accept b": Accept("done", "b"),
    "accept q yes": Accept("done", "q", "yes"),
    "fail": Fail("bad"),
    "fail a": Fail("bad", "a"),
    "rewind 0": Rewind("0"),
    "rewind a": Rewind("a"),
    "rewind 9": Rewind("9"),
    "start-at b": StartAt("b"),
    "set exit true": SetField("exit", value=True),
    "set token 9": SetField("token", 9),
    "set ticket x": SetField("ticket", "x"),
    "set step_index 1": SetField("step_index", 1),
    "reset": Reset(),
    "reset other": Reset("other"),
    "adopt": Adopt(),
    "takeover": TakeOver(),
    "stop --now": StopNow(),
    "stop": Stop("enough"),
    "pause": Pause(),
    "resume": Resume(),
    "skip-to 3": SkipTo(3, 1, "on"),
}
_AGENT = """\
agents: {w: {kind: command, argv: [sh, -c, 'test ! -e fail-$SEQUENCER_STEP && echo done']}}
agent: {default: w}
limits: {failures_in_row: 2}
"""
KINDS = {
    "cycle": "workflow: {name: c}\nworkflows: {c: {steps: [a, b]}}\n",
    "procedure": "workflow: {name: p}\n"
    "workflows: {p: {kind: procedure, steps: [a, {name: b, requires_approval: true}, c]}}\n",
    "graph": "workflow: {name: g}\nworkflows: {g: g.md}\n",
}
_FLOW = """\
---
id: g
---

```mermaid
flowchart TD
 a --> q{{Which?}}
 q -->|yes| b
 q -->|no| c
 a --> d
```

### a
a
### b
b
### c
c
### d
d
"""


def opened(folder: Path) -> Run:
    """Return the run of the project in *folder*."""
    project = open_project(folder, trust=True)
    if project.settings.workflow.name != "g":
        return project.run(None)
    name, source = resolve_run(project, "g", {}, None, is_new=False)
    return project.run(name, source=source)


def _work(folder: Path, steps: int = 1, mode: Mode = Mode.TICK) -> None:
    with suppress(SequencerError):
        opened(folder).work(mode, InvocationLimits(max_steps=steps, max_wait_s=0))


def _failed(folder: Path) -> None:
    (folder / "fail-a").touch()
    _work(folder)


def _after_a_step(command: RunCommand) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        _work(folder)
        opened(folder).do(command)

    return make


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Let this process hold a claim."""
    _work(folder)
    with opened(folder).turn():
        yield


def _over(folder: Path) -> None:
    _work(folder, 9, Mode.COMBINED)
    with suppress(SequencerError):
        opened(folder).do(Reject(), by="ann")


STATES: Mapping[str, Callable[[Path], AbstractContextManager[None] | None]] = {
    "new": lambda _: None,
    "idle": _work,
    "failed": _failed,
    "paused": _after_a_step(Pause()),
    "stopped": _after_a_step(Stop("enough")),
    "waiting": lambda folder: _work(folder, 3, Mode.COMBINED),
    "held": _held,  # not of a graph, whose nodes nobody can hold from outside
    "over": _over,
}


def make_project(folder: Path, kind: str) -> None:
    """Make a project with a workflow of *kind* in *folder*."""
    (folder / "prompts").mkdir(parents=True)
    for name in "abcd":
        (folder / "prompts" / f"{name}.md").write_text(name)
    (folder / "orchestration.yaml").write_text(_AGENT + KINDS[kind])
    (folder / "g.md").write_text(_FLOW)


def rows(folder: Path, kind: str, state: str) -> Iterator[str]:
    """Yield a line for each command; *folder* is used, and so is the environment."""
    made = folder / "made"
    make_project(made, kind)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    with STATES[state](made) or nullcontext():
        for number, (name, command) in enumerate(COMMANDS.items()):
            copy = folder / str(number)
            shutil.copytree(made, copy)
            # What this user has seen of the run is not in the copy.
            os.environ["XDG_STATE_HOME"] = str(folder / f"state-{number}")
            yield f"{kind} {state}: {name} -> {_done(opened(copy), command)}"
            shutil.rmtree(copy)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")


def _done(run: Run, command: RunCommand) -> str:
    try:
        done = run.do(command, by="ann")
    except SequencerError as error:
        hint = f" | {error.hint}" if error.hint else ""
        return _steady(f"{type(error).__name__}: {error.message}{hint}")
    finally:
        run.store.close()
    head, facts = done.head, []
    for fact in done.facts:
        outcome = {k: v for k, v in (fact.outcome or {}).items() if k != "usage"}
        facts.append(f"{fact.event} {fact.step} {json.dumps(outcome, sort_keys=True)}")
    where = f"{head.status} {head.step_index} {head.expected_step}"
    return _steady(f"{where}: {'; '.join(facts)}")


def _steady(text: str) -> str:
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", text)
    text = re.sub(r"process \d+ on \S+|process \d+", "PROCESS", text)
    return text.replace("\n", " / ")
