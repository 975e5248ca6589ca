from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import CorruptState, DefinitionChanged, StateRefused
from sequencer.model.head import Head, Status
from sequencer.model.sequence.order import resolve
from sequencer.model.whole_numbers import MAX_COUNTER
from sequencer.store.head import is_legacy, migrate
from sequencer.workflows.registry import Registry

NEWER: dict[str, Any] = {
    "workflow_name": "review_cadence",
    "step_index": 12,
    "iteration": 13,
    "expected_step": "supervisor.md",
    "status": "waiting-next",
    "last_update": "2026-02-01T10:00:00Z",
    "lease_expires_at": "2026-02-01T10:10:00Z",
    "galph_commit": "abc1234",
    "ralph_commit": None,
    "last_prompt": "main.md",
}
OLDER: dict[str, Any] = {
    "iteration": 141,
    "expected_actor": "ralph",
    "status": "waiting-ralph",
    "last_update": "2026-01-01T10:00:00Z",
    "lease_expires_at": "2026-01-01T10:10:00Z",
    "galph_commit": "abc1234",
    "ralph_commit": "def5678",
    "last_prompt": "supervisor.md",
    "last_prompt_actor": "galph",
}
WORKFLOW = Registry().get("review_cadence").with_review_every(3)


def head_of(raw: dict[str, Any], **more: Any) -> Head:
    given_values: dict[str, Any] = {
        "new_run_id": "run-1",
        "workflow_name": "review_cadence",
        "digest": "sha256:x",
        "params": {"review_every_n_cycles": 3},
        "expected_step_for": lambda index: resolve(WORKFLOW, index).name,
        "at": "2026-11-21T00:00:00Z",
    }
    return migrate(raw, **(given_values | more))


@pytest.mark.parametrize(
    ("iteration", "actor", "step_index"),
    [(1, "galph", 0), (1, "ralph", 1), (2, "galph", 2), (2, "ralph", 3), (500, "galph", 998)],
)
def test_the_actor_whose_turn_it_was_stays_next(
    iteration: int, actor: str, step_index: int
) -> None:
    raw = {"iteration": iteration, "expected_actor": actor, "status": "idle"}
    assert head_of(raw).step_index == step_index


@pytest.mark.parametrize(
    ("old", "new", "failures"),
    [
        ("idle", Status.IDLE, 0),
        ("waiting-next", Status.WAITING_NEXT, 0),
        ("complete", Status.WAITING_NEXT, 0),
        ("failed", Status.FAILED, 1),
        ("running", Status.FAILED, 1),
        ("running-step", Status.FAILED, 1),
    ],
)
def test_statuses(old: str, new: Status, failures: int) -> None:
    head = head_of({**NEWER, "status": old})
    assert (head.status, head.failures_in_row) == (new, failures)


@pytest.mark.parametrize("actor", ["galph", "ralph"])
def test_statuses_of_the_older_form(actor: str) -> None:
    def status(word: str) -> Status:
        return head_of({**OLDER, "expected_actor": actor, "status": word}).status

    assert status(f"waiting-{actor}") is Status.WAITING_NEXT
    assert status(f"running-{actor}") is Status.FAILED
    assert status("complete") is Status.WAITING_NEXT


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step_index": -1}, "step_index is -1"),
        ({"step_index": 12.0}, "step_index is 12.0"),
        ({"step_index": "12"}, "step_index is '12'"),
        ({"step_index": True, "iteration": 2}, "step_index is True"),
        ({"step_index": None}, "step_index is None"),
        ({"step_index": 2**63}, "step_index is 9223372036854775808"),
        ({"iteration": 12}, "step_index 12 and iteration 12 contradict"),
        ({"iteration": "13"}, "iteration is '13'"),
        ({"status": "resting"}, "status is 'resting'"),
        ({"status": "waiting-"}, "status is 'waiting-'"),
        ({"status": None}, "status is None"),
        ({"status": ["idle"]}, "status is ['idle']"),
        ({"workflow_name": 5}, "workflow_name is 5"),
        ({"workflow_name": ""}, "workflow_name is ''"),
        ({"last_prompt": 5}, "last_prompt is 5"),
        ({"expected_actor": "galph"}, "both step_index and expected_actor"),
        ({"token": 4}, "fields of two programs: token"),
        ({"claims": [], "usage": {}}, "fields of two programs: claims, usage"),
    ],
)
def test_a_newer_file_that_is_damaged_or_ambiguous_is_refused(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CorruptState) as refused:
        head_of({**NEWER, **change})
    assert problem in refused.value.message
    assert refused.value.exit_code == 3
    assert "it was not changed" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"iteration": 0}, "iteration is 0"),
        ({"iteration": None}, "iteration is None"),
        ({"iteration": MAX_COUNTER}, "iteration is 9223372036854775807"),
        ({"expected_actor": "Galph"}, "expected_actor is 'Galph'"),
        ({"expected_actor": None}, "expected_actor is None"),
        ({"expected_actor": ["ralph"]}, "expected_actor is ['ralph']"),
        ({"status": "waiting-galph"}, "status is 'waiting-galph', but expected_actor is 'ralph'"),
        ({"status": "running-galph"}, "status is 'running-galph'"),
    ],
)
def test_an_older_file_that_is_damaged_or_ambiguous_is_refused(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CorruptState) as refused:
        head_of({**OLDER, **change})
    assert problem in refused.value.message


@pytest.mark.parametrize("field", ["iteration", "status"])
def test_a_field_missing_in_an_older_file_is_never_invented(field: str) -> None:
    raw = {key: value for key, value in OLDER.items() if key != field}
    with pytest.raises(CorruptState, match=field):
        head_of(raw)


def test_another_workflow_is_not_taken_for_this_one() -> None:
    with pytest.raises(DefinitionChanged) as refused:
        head_of(NEWER, workflow_name="standard")
    assert "'review_cadence'" in refused.value.message
    assert "set workflow.name to 'review_cadence'" in str(refused.value.hint)


def test_cycles_of_two_are_not_counted_in_cycles_of_three() -> None:
    with pytest.raises(DefinitionChanged, match="cycles of 2 steps, but 'review_cadence' has 3"):
        head_of(OLDER, cycle_length=3)
    assert head_of(NEWER, cycle_length=3).step_index == 12


@pytest.mark.parametrize(
    ("raw", "is_old"),
    [
        (NEWER, True),
        (OLDER, True),
        ({"step_index": 0}, True),
        ({}, False),
        ({"iteration": 3, "status": "idle"}, False),
        ({**NEWER, "schema_version": 1}, False),
        ({**NEWER, "schema_version": 99}, False),
        ({**NEWER, "run_id": "x"}, False),
        ({**NEWER, "revision": 3}, False),
    ],
)
def test_files_of_the_old_program_are_recognized(raw: dict[str, Any], *, is_old: bool) -> None:
    assert is_legacy(raw) is is_old
    if not is_old:
        with pytest.raises(CorruptState, match="not a state file of hoidn/orchestration"):
            head_of(raw)


fields = st.sampled_from([*sorted(NEWER.keys() | OLDER.keys()), "exit", "extra"])
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from(["galph", "ralph", "idle", "complete", "waiting-next", "review_cadence"]),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


@given(st.sampled_from([NEWER, OLDER]), st.dictionaries(fields, values, max_size=3))
def test_any_file_is_refused_or_keeps_its_step_index(
    base: dict[str, Any], change: dict[str, Any]
) -> None:
    raw = {**base, **change}
    try:
        head = head_of(raw)
    except StateRefused:
        return
    if "step_index" in raw:
        assert head.step_index == raw["step_index"]
    else:
        assert head.step_index // 2 + 1 == raw["iteration"]
        assert head.step_index % 2 == ["galph", "ralph"].index(raw["expected_actor"])
    assert head.iteration == head.step_index + 1
