"""Each public method of a run and of what changes it: for people, or for agents as well."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from sequencer.engine.invocation_budget import Mode
from sequencer.engine.run import Run
from sequencer.engine.run_commands import RunCommands
from sequencer.errors import DecisionRefused, NotTrusted, WaitsForPerson
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
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits
from sequencer.project.flows import resolve_run
from sequencer.project.project import open_project, open_run
from sequencer.store.file import FileStore
from sequencer.store.identity import INSIDE_AGENT

if TYPE_CHECKING:
    from sequencer.model.request import Definition

SETTINGS = f"""\
agent: worker
agents: {{worker: {{kind: command, argv: ["{sys.executable}", -c, "print('done')"]}}}}
steps: [{{name: a, text: x, requires_approval: true}}, {{name: b, text: x}}]
workflows: {{ask: ask.md}}
"""
ASK = """\
---
id: ask
---

```mermaid
flowchart TD
 q{{Which?}} -->|yes| e((End))
 q -->|no| f((Other))
```
"""
FOR_PEOPLE: tuple[RunCommand, ...] = (
    Adopt(),
    AnswerQuestion("q", "yes"),
    Approve(),
    Feedback("more"),
    Reject(),
    Reset(),
    Resume(),
    RetryNow(),
    Rewind("0"),
    SetField("exit", value=True),
    Skip(),
    SkipTo(9, 1, "x"),
    Fail(),
    Accept(),
    StartAt("q"),
    TakeOver(),
    StopNow(),
)
FOR_AGENTS: tuple[RunCommand, ...] = (Pause(), Stop("enough"), Tell("mind the gap"))
"""Also inside of an agent."""
OF_NEW_RUNS = {"begin", "start"}
OF_THE_ENGINE = {"expire_waits"}
"""What the configuration has decided."""
STATE_DISPLAYS = {"ensure_may_begin", "ensure_may_decide", "kind", "nodes"}
RUN_LOOKS = {
    *(
        "commands",
        "definition",
        "list_detached_orders",
        "dispatch",
        "find_worker_location",
        "flow",
        "head",
        "history",
        "kind",
    ),
    *("describe_blockers", "list_attempt_processes", "next", "readiness", "readiness_at"),
    *("view", "workflow"),
    "workflow_for",
}
RUN_OF_THE_ENGINE = {"turn", "work", "worker"}
"""They make the steps that the run's definition decides; see the tests of new runs."""


def public(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}


def test_every_command_and_public_method_is_known_here() -> None:
    """A new one fails this until it is decided whether an agent may use it."""
    known = [type(command) for command in (*FOR_PEOPLE, *FOR_AGENTS)]
    assert sorted(map(str, known)) == sorted(map(str, RunCommand.__subclasses__()))
    assert public(RunCommands) == {"do", *OF_NEW_RUNS, *OF_THE_ENGINE, *STATE_DISPLAYS}
    assert public(Run) == {"do", *RUN_LOOKS, *RUN_OF_THE_ENGINE}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project whose default run waits at a gate, and run 'ask' for an answer."""
    (tmp_path / "orchestration.yaml").write_text(SETTINGS)
    (tmp_path / "ask.md").write_text(ASK)
    open_run(tmp_path).work(limits=InvocationLimits(max_steps=1))
    with pytest.raises(WaitsForPerson):
        asking(tmp_path).work()
    return tmp_path


def asking(folder: Path) -> Run:
    opened = open_project(folder)
    name, source = resolve_run(opened, "ask", {}, None, is_new=False)
    return opened.run(name, source=source)


def run_for(folder: Path, command: RunCommand) -> Run:
    """Return the run that *command* makes sense for."""
    return asking(folder) if isinstance(command, (AnswerQuestion, StartAt)) else open_run(folder)


def heads(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("sync/**/*.json*"))]


def test_an_agent_decides_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = heads(project)
    opened = [(run_for(project, command), command) for command in FOR_PEOPLE]
    turning = open_run(project)
    monkeypatch.setenv(INSIDE_AGENT, "")
    for run, command in opened:
        for asked in (run, run.commands):
            with pytest.raises(DecisionRefused):
                asked.do(command, by="x")
            assert heads(project) == before, command
    with pytest.raises(DecisionRefused):
        turning.turn().__enter__()
    assert heads(project) == before


def test_agents_can_run_the_commands_allowed_to_them(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = open_run(project).commands
    monkeypatch.setenv(INSIDE_AGENT, "7")
    assert control.do(Tell("mind the gap"), by="x").head.revision
    assert control.do(Pause()).head.status == "paused"
    assert control.do(Stop("enough")).head.exit
    control.expire_waits()


def test_a_person_can_make_these_decisions(project: Path) -> None:
    """So that what is refused above is refused for the agent's sake, and not for another."""
    assert asking(project).do(AnswerQuestion("q", "yes"), by="x").head.status == "complete"
    assert open_run(project).do(Approve(), by="x").head.gate is None
    assert open_run(project).do(Skip()).head.step_index == 2


def test_an_agent_cannot_start_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orchestration.yaml").write_text(SETTINGS)
    (tmp_path / "ask.md").write_text(ASK)
    monkeypatch.setenv(INSIDE_AGENT, "7")
    run, definition = open_run(tmp_path), cast("Definition", None)
    for mode in (Mode.COMBINED, Mode.TICK, Mode.ASYNC):
        with pytest.raises(DecisionRefused):
            run.work(mode)
    with pytest.raises(DecisionRefused):
        run.commands.begin()
    with pytest.raises(DecisionRefused):
        run.turn().__enter__()
    with pytest.raises(DecisionRefused):
        run.commands.start(definition)
    assert not (tmp_path / "sync").exists()


def test_a_run_opened_without_a_project_is_no_way_around(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = open_run(project).workflow
    store = FileStore(project / "sync" / "state.json")
    monkeypatch.setenv(INSIDE_AGENT, "7")
    with pytest.raises(DecisionRefused):
        RunCommands(store, workflow).do(Approve(), by="x")
    fresh = RunCommands(FileStore(project / "other" / "state.json"), workflow)
    with pytest.raises(DecisionRefused):
        fresh.begin()
    assert not (project / "other" / "journal.jsonl").exists()


def test_an_agent_may_do_what_its_trusted_project_allows(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what it has written itself, and whoever vouches for the project inside of it."""
    config = project / "orchestration.yaml"
    config.write_text(f"{config.read_text()}agents_may_decide: [answer, stop]\n")
    monkeypatch.setenv(INSIDE_AGENT, "7")
    for trust in (False, True):
        with pytest.raises(NotTrusted):
            open_run(project, trust=trust).do(Approve(), by="x")
    monkeypatch.delenv(INSIDE_AGENT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("SEQUENCER_TRUST")
    open_project(project).trust.save_record()
    monkeypatch.setenv(INSIDE_AGENT, "7")
    head: Head = open_run(project).do(Approve(), by="x").head
    assert head.gate is None
    assert open_run(project).do(StopNow()).facts == ()
    with pytest.raises(DecisionRefused, match="takeover"):
        open_run(project).do(TakeOver())
