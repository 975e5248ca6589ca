"""Each public method of a run and of what changes it: for people, or for agents as well."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from sequencer.engine.by_hand import Control
from sequencer.engine.run import Run
from sequencer.engine.stint import Mode
from sequencer.errors import DecisionRefused, NotTrusted, TransitionRefused, WaitsForPerson
from sequencer.model.head import Head
from sequencer.model.limits import InvocationLimits
from sequencer.project.flows import run_of
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
Change = Callable[[Control], Any]
FOR_PEOPLE: dict[str, Change] = {
    "adopt": lambda control: control.adopt(),
    "answer": lambda control: control.answer("q", "yes", by="x"),
    "approve": lambda control: control.approve(by="x"),
    "feedback": lambda control: control.feedback("more", by="x"),
    "reject": lambda control: control.reject(by="x"),
    "reset": lambda control: control.reset(),
    "resume": lambda control: control.resume(),
    "retry": lambda control: control.retry(),
    "rewind": lambda control: control.rewind(0),
    "set_field": lambda control: control.set_field("exit", value=True),
    "skip": lambda control: control.skip(),
    "skip_to": lambda control: control.skip_to(9, "x", present=1),
    "stamp_fail": lambda control: control.stamp_fail(),
    "stamp_ok": lambda control: control.stamp_ok(),
    "start_at": lambda control: control.start_at("q"),
    "take_over": lambda control: control.take_over(),
}
OF_NEW_RUNS = {"begin", "start"}
FOR_AGENTS = {"pause", "stop", "tell"}
"""Also inside of an agent."""
OF_THE_ENGINE = {"lapse"}
"""What the configuration has decided."""
LOOKS = {"ensure_may_begin", "ensure_may_decide", "kind", "nodes"}
RUN_FOR_PEOPLE: dict[str, Callable[[Run], Any]] = {
    "answer": lambda run: run.answer("q", "yes", by="x"),
    "approve": lambda run: run.approve(by="x"),
    "feedback": lambda run: run.feedback("more", by="x"),
    "reject": lambda run: run.reject(by="x"),
    "turn": lambda run: run.turn().__enter__(),
}
RUN_LOOKS = {
    *(
        "control",
        "definition",
        "detached",
        "dispatch",
        "elsewhere",
        "flow",
        "head",
        "history",
        "kind",
    ),
    *("makers", "next", "standing", "stopped_by", "view", "workflow", "workflow_for"),
}
RUN_OF_THE_ENGINE = {"work", "worker"}
"""They make the steps that the run's definition decides; see the tests of new runs."""


def public(of: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}


def test_every_public_method_is_known_here() -> None:
    """A new one fails this until somebody has said whether an agent may use it."""
    known = {*FOR_PEOPLE, *OF_NEW_RUNS, *FOR_AGENTS, *OF_THE_ENGINE, *LOOKS}
    assert public(Control) == known
    assert public(Run) == {*RUN_FOR_PEOPLE, *RUN_LOOKS, *RUN_OF_THE_ENGINE}


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
    name, source = run_of(opened, "ask", {}, None, anew=False)
    return opened.run(name, source=source)


def runs(folder: Path) -> dict[str, Run]:
    return {name: asking(folder) if name in ("answer", "start_at") else open_run(folder)
            for name in (*FOR_PEOPLE, *RUN_FOR_PEOPLE)}  # fmt: skip


def heads(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("sync/**/*.json*"))]


def test_an_agent_decides_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, opened = heads(project), runs(project)
    monkeypatch.setenv(INSIDE_AGENT, "")
    for name, change in FOR_PEOPLE.items():
        with pytest.raises(DecisionRefused):
            change(opened[name].control)
        assert heads(project) == before, name
    for name, act in RUN_FOR_PEOPLE.items():
        with pytest.raises(DecisionRefused):
            act(opened[name])
        assert heads(project) == before, name


def test_what_agents_may_do_they_can(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control = open_run(project).control
    monkeypatch.setenv(INSIDE_AGENT, "7")
    assert control.tell(None, "mind the gap", by="x").revision
    assert control.pause().status == "paused"
    assert control.stop("enough").exit
    control.lapse()


def test_a_person_decides_all_of_it(project: Path) -> None:
    """So that what is refused above is refused for the agent's sake, and not for another."""
    assert asking(project).control.answer("q", "yes", by="x").status == "complete"
    assert open_run(project).control.approve(by="x").gate is None
    assert open_run(project).control.skip().step_index == 2


def test_an_agent_begins_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orchestration.yaml").write_text(SETTINGS)
    (tmp_path / "ask.md").write_text(ASK)
    monkeypatch.setenv(INSIDE_AGENT, "7")
    run, definition = open_run(tmp_path), cast("Definition", None)
    for mode in (Mode.COMBINED, Mode.TICK, Mode.ASYNC):
        with pytest.raises(DecisionRefused):
            run.work(mode)
    with pytest.raises(DecisionRefused):
        run.control.begin()
    with pytest.raises(DecisionRefused):
        run.turn().__enter__()
    with pytest.raises(DecisionRefused):
        run.control.start(definition)
    assert not (tmp_path / "sync").exists()


def test_a_run_that_no_project_has_made_is_no_way_around(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = open_run(project).workflow
    store = FileStore(project / "sync" / "state.json")
    monkeypatch.setenv(INSIDE_AGENT, "7")
    with pytest.raises(DecisionRefused):
        Control(store, workflow).approve(by="x")
    fresh = Control(FileStore(project / "other" / "state.json"), workflow)
    with pytest.raises(DecisionRefused):
        fresh.begin()
    assert not (project / "other" / "journal.jsonl").exists()


def test_an_agent_may_what_its_project_was_trusted_to_allow(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what it has written itself, and whoever vouches for the project inside of it."""
    config = project / "orchestration.yaml"
    config.write_text(f"{config.read_text()}agents_may_decide: [answer, stop]\n")
    monkeypatch.setenv(INSIDE_AGENT, "7")
    for trust in (False, True):
        with pytest.raises(NotTrusted):
            open_run(project, trust=trust).approve(by="x")
    monkeypatch.delenv(INSIDE_AGENT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("SEQUENCER_TRUST")
    open_project(project).trust.keep()
    monkeypatch.setenv(INSIDE_AGENT, "7")
    head: Head = open_run(project).approve(by="x")
    assert head.gate is None
    with pytest.raises(TransitionRefused, match="no process holds a step"):
        open_run(project).control.take_over(stops=True)
    with pytest.raises(DecisionRefused, match="takeover"):
        open_run(project).control.take_over()
