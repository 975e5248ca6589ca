"""Which layers a step passes: those that it or its project asks for, in one order."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sequencer.engine.attempt import Attempt
from sequencer.engine.events import AttemptEnded, AttemptStarted, RunEvent, ignore
from sequencer.engine.hooking import NoHooks
from sequencer.engine.layers.layer import Next
from sequencer.engine.layers.log import keep_log
from sequencer.engine.layers.order import list_layers, perform
from sequencer.engine.performing import Performer
from sequencer.errors import UnsafeFolder
from sequencer.model.outcome import OutcomeStatus
from sequencer.model.step import Step
from sequencer.project.project import open_project
from sequencer.project.runs import workflow_for
from tests.contract.store_cases import new_head
from tests.unit.cli.calling import project
from tests.unit.saying import attempt

HAND = "{kind: scripted, outcomes: [{output: done}]}"
PLAIN = f"agents: {{hand: {HAND}, other: {HAND}}}\nsteps: [one]\n"
FIRST = "agent: {default: hand}\n"
ROUTED = FIRST + "router: {enabled: true, prompt: router.md, mode: router_first}\n"
FALLING_BACK = "agent: {default: hand, fallback: [other]}\n"
SESSION = {"executor": "hand", "id": "abc"}
CONTINUED = Step(name="one", continue_session=True)


def performer_of(folder: Path, more: str, heard: list[RunEvent] | None = None) -> Performer:
    opened = open_project(project(folder, more + PLAIN, "one.md", "router.md"))
    workflow, events = workflow_for(opened.settings, None), [] if heard is None else heard
    return opened.performer(workflow, events.append, None)


def claimed(performer: Performer, step: Step | None = None, **update: Any) -> Attempt:
    folder = performer.project
    made = attempt(
        step or Step(name="one"),
        state_path=folder / "sync" / "state.json",
        result_path=folder / "sync" / "results" / "0-1" / "result.json",
    )
    agent, executor = performer.agents.choose(made.step, "one")
    prepared = replace(made.prepared, agent=agent, executor=executor, prompt="Do it.")
    return replace(made, prepared=prepared, cwd=folder, lock_path=folder / "lock", **update)


def names(performer: Performer, made: Attempt) -> list[str]:
    found = [keep_log, *(layer for layer, needed in list_layers(performer, made) if needed)]
    return [layer.__name__ for layer in found]


def test_a_step_without_any_option_has_three_layers(tmp_path: Path) -> None:
    performer = performer_of(tmp_path, FIRST)
    assert names(performer, claimed(performer)) == ["keep_log", "judge_evidence", "hold_lock"]


@pytest.mark.parametrize(
    ("more", "step", "update", "added"),
    [
        (ROUTED, None, {}, ["choose_prompt"]),
        (FALLING_BACK, None, {}, ["fall_back"]),
        (FIRST, None, {"compose": str.upper}, ["complete_prompt"]),
        (FIRST, CONTINUED, {"head": new_head(session=SESSION)}, ["continue_conversation"]),
        (FIRST, CONTINUED, {}, []),
    ],
)
def test_each_option_is_one_layer(
    tmp_path: Path, more: str, step: Step | None, update: dict[str, Any], added: list[str]
) -> None:
    performer = performer_of(tmp_path, more)
    found = names(performer, claimed(performer, step, **update))
    assert found == ["keep_log", "judge_evidence", "hold_lock", *added]


def test_hooks_are_asked_before_and_after_the_agent(tmp_path: Path) -> None:
    performer = replace(performer_of(tmp_path, FIRST), hooks=NoHooks())
    found = names(performer, claimed(performer))
    assert found == ["keep_log", "decide_by_hook", "judge_evidence", "hold_lock", "apply_hooks"]


def test_a_layer_that_asks_no_agent_fails_the_attempt(tmp_path: Path) -> None:
    def forget(*_: object, proceed: Next) -> None:
        del proceed

    heard: list[RunEvent] = []
    performer = performer_of(tmp_path, FIRST, heard)
    made = claimed(performer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sequencer.engine.layers.order.hold_lock", forget)
        perform(performer, made)
    assert made.ended is not None
    assert made.ended.outcome.status is OutcomeStatus.FAILED
    assert made.ended.outcome.error == "no agent has run"
    assert [type(event) for event in heard] == [AttemptStarted, AttemptEnded]


def test_an_unsafe_folder_is_not_a_failure_of_the_step(tmp_path: Path) -> None:
    def unsafe(*_: object, proceed: Next) -> None:
        del proceed
        raise UnsafeFolder("the log folder is a link")

    heard: list[RunEvent] = []
    performer = performer_of(tmp_path, FIRST, heard)
    made = claimed(performer)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sequencer.engine.layers.order.hold_lock", unsafe)
        with pytest.raises(UnsafeFolder):
            perform(performer, made)
    assert made.ended is None
    ended = heard[-1]
    assert isinstance(ended, AttemptEnded)
    assert ended.outcome.status is OutcomeStatus.INTERRUPTED
    assert "is a link" in Path(made.log.path).read_text()


def test_outer_layers_see_the_result_and_can_write_to_the_log(tmp_path: Path) -> None:
    seen: list[str] = []

    def outer(_: Performer, made: Attempt, /, proceed: Next) -> None:
        seen.append(f"before {made.ended}")
        proceed(made)
        assert made.ended is not None
        seen.append(f"after {made.ended.outcome.output}")

        made.ended = replace(made.ended, outcome=made.ended.outcome.replace(error="not merged"))
        made.write_notice("it can't be merged")

    performer = performer_of(tmp_path, FIRST)
    made = claimed(performer)
    perform(performer, made, outer)
    assert seen == ["before None", "after done"]
    text = Path(made.log.path).read_text()
    assert text.index("can't be merged") < text.index("# ended")


def test_an_attempt_is_freed_when_nothing_refers_to_it(tmp_path: Path) -> None:
    """Else each step would wait for Python's search for garbage, which costs 6 % of its time."""
    performer = replace(performer_of(tmp_path, FIRST), emit=ignore)
    made = claimed(performer, head=new_head(run_id="freed"))
    gc.disable()
    try:
        perform(performer, made)
        del made
        attempts = [one for one in gc.get_objects() if isinstance(one, Attempt)]
        assert not [one for one in attempts if one.run_id == "freed"]
    finally:
        gc.enable()
