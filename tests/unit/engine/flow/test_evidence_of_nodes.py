"""What nodes of a graph have to show, and a loop that repeats itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sequencer.errors import WaitsForPerson
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import StepRequest
from sequencer.model.commands import Resume
from sequencer.model.evidence import Evidence
from sequencer.model.outcome import Outcome
from sequencer.model.step import Retry, Step
from sequencer.model.workflow import Workflow
from tests.flows import workflow
from tests.unit.engine.flow.labs import Act, Actor, Lab, said
from tests.unit.engine.projects import until

LOOP = "a --> b; b -->|again| a; b -->|done| c"


def shown(output: str = "", **evidence: Any) -> Outcome:
    facts = {"has_text": True, "answer": output or "same", **evidence}
    return said(output, evidence=Evidence(**facts))


def changing(folder: Path, then: Outcome) -> Act:
    """Return an agent that writes a file."""

    def act(request: StepRequest, cancellation: Cancellation) -> Outcome:
        del cancellation
        (folder / "work.txt").write_text(f"{request.identity.token}")
        return then

    return act


def with_steps(made: Workflow, **fields: Any) -> Workflow:
    steps = [Step.model_validate({**step.model_dump(), **fields}) for step in made.steps]
    return Workflow(made.name, steps, kind="graph", graph=made.graph)


def older(made: Lab) -> Lab:
    """Return *made* once its files are older than what comes."""
    (made.folder / "old.txt").write_text("x")
    until(lambda: time.time() > (made.folder / "old.txt").stat().st_ctime + 0.05)
    return made


def of(folder: Path, flow: Workflow, **says: list[Any]) -> Lab:
    return older(Lab(folder, flow, Actor(says)))


def looping(folder: Path, **says: list[Any]) -> Lab:
    return of(folder, workflow(LOOP, max_iterations=60), **{"b": [shown("again")], **says})


def test_a_loop_whose_node_repeats_itself_is_paused(tmp_path: Path) -> None:
    made = looping(tmp_path, a=[shown()])
    assert "step 'a' gave the same answer 5 times in a row" in made.refused(places=1).message
    assert (made.head.status, made.accepted().count("a")) == ("paused", 5)
    notes = ["# Do you repeat yourself?" in text for text in made.actor.prompts_of("a")]
    assert notes == [False] * 4 + [True]
    again = made.refused()
    assert isinstance(again, WaitsForPerson)
    assert made.accepted().count("a") == 5
    made.run().do(Resume())
    made.work(limits={"max_steps": 4})
    assert made.accepted().count("a") == 7


def test_a_loop_that_changes_files_continues(tmp_path: Path) -> None:
    made = looping(tmp_path, a=[changing(tmp_path, shown())])
    made.work(limits={"max_steps": 50})
    assert made.head.usage.steps == 50


def test_a_node_that_must_change_files_but_does_not_is_retried(tmp_path: Path) -> None:
    flow = with_steps(workflow("a --> b", retry=Retry(max_attempts=2)), expects="change")
    acts: list[Callable[..., Outcome] | Outcome] = [shown(), changing(tmp_path, shown())]
    made = of(tmp_path, flow, a=acts, b=[changing(tmp_path, shown())])
    made.work(places=1)
    assert [fact["outcome"]["missing"] for fact in made.facts("failed")] == ["change"]
    first, second = made.actor.prompts_of("a")
    assert "# Your last attempt did not count" not in first
    assert "# Your last attempt did not count" in second


def test_nodes_sharing_a_folder_are_not_reported_as_changing_nothing(tmp_path: Path) -> None:
    flow = with_steps(workflow("s --> a & b --> j"), expects="change")
    write = changing(tmp_path, shown())
    made = of(tmp_path, flow, s=[write], a=[shown()], b=[shown()], j=[write])
    made.work(places=2)
    found = {
        f["step"]: f["outcome"]["evidence"].get("has_changed") for f in made.facts("succeeded")
    }
    assert found == {"s": True, "a": None, "b": None, "j": True}
