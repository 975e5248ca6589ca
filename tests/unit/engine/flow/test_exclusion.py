"""A node whose answer decides the way does not run beside an agent without a wall."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sequencer.engine import exclusion
from sequencer.executors.wall import Wall
from tests.unit.engine.flow.labs import Actor, Hold, Lab, lab, until

FLOW = "s --> review & build\nreview --> j{ok?}\nj -->|no| n\nj -->|yes| y\nbuild --> z\nz --> z2"


@dataclass
class Walled(Actor):
    """An actor whose entry says which wall it gets."""

    wall: Wall = Wall.SCOPES


def made(folder: Path, wall: Wall = Wall.SCOPES, text: str = FLOW, **says: object) -> Lab:
    found = lab(folder, text)
    found.actor = Walled({"review": ["yes"], **says}, wall=wall)  # type: ignore[dict-item]
    return found


def claimed_behind_the_start(run: Lab) -> list[str]:
    """Return what a process claims that could have four agents after the first node."""
    run.work(limits={"max_steps": 1})
    run.claimed(slots=4)
    return [claim.step for claim in run.head.claims]


@pytest.fixture
def _has_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusion, "unavailable_reason", lambda: None)


@pytest.fixture
def _has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exclusion, "unavailable_reason", lambda: "no Landlock")


@pytest.mark.usefixtures("_has_wall")
def test_with_walls_the_decision_and_another_agent_run_in_parallel(tmp_path: Path) -> None:
    review, build = Hold("yes"), Hold()
    run = made(tmp_path, review=[review], build=[build])
    work = run.works(places=4)
    review.wait()
    build.wait()
    review.go.set()
    build.go.set()
    work.summary()
    assert run.status == "completed"


@pytest.mark.usefixtures("_has_none")
def test_without_a_wall_the_decision_runs_alone(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert claimed_behind_the_start(run) == ["review"]


@pytest.mark.usefixtures("_has_none")
def test_without_a_wall_the_decision_waits_for_the_running_node(tmp_path: Path) -> None:
    run = made(tmp_path, text=FLOW.replace("review & build", "build & review"))
    assert claimed_behind_the_start(run) == ["build"]


@pytest.mark.usefixtures("_has_wall")
def test_an_agent_without_a_wall_is_kept_apart_even_if_the_kernel_has_one(tmp_path: Path) -> None:
    assert claimed_behind_the_start(made(tmp_path, Wall.NONE)) == ["review"]


@pytest.mark.usefixtures("_has_none")
@pytest.mark.parametrize("first", ["review & build", "build & review"])
def test_each_gets_its_turn_and_the_flow_ends(tmp_path: Path, first: str) -> None:
    run = made(tmp_path, text=FLOW.replace("review & build", first))
    run.work(places=4)
    assert run.status == "completed"
    assert sorted(run.accepted()) == ["build", "review", "s", "y", "z", "z2"]


@pytest.mark.usefixtures("_has_none")
def test_agents_run_together_when_nothing_is_being_decided(tmp_path: Path) -> None:
    one, two = Hold(), Hold()
    run = made(tmp_path, text="s --> one & two", one=[one], two=[two])
    work = run.works(places=4)
    one.wait()
    two.wait()
    one.go.set()
    two.go.set()
    work.summary()


@pytest.mark.usefixtures("_has_none")
def test_another_process_respects_the_exclusion_too(tmp_path: Path) -> None:
    review = Hold("yes")
    run = made(tmp_path, review=[review])
    first = run.works(places=4)
    review.wait()
    second = run.works(places=4)
    second.ready()
    until(lambda: {one.step for one in run.head.claims} == {"review"})
    assert "build" not in run.actor.names
    review.go.set()
    first.summary()
    second.summary()
    assert run.status == "completed"


@pytest.mark.usefixtures("_has_none")
def test_nodes_of_a_dead_process_are_restarted_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path)
    run.work(limits={"max_steps": 1})
    with monkeypatch.context() as before:
        before.setattr(exclusion, "unavailable_reason", lambda: None)
        run.died()
    assert [claim.step for claim in run.head.claims] == ["review", "build"]
    run.claimed(slots=4)
    assert [claim.step for claim in run.head.claims] == ["review"]
    assert run.facts("taken-over")
