"""State files of hoidn/orchestration, read as the first head of a run.

Two forms exist. The newer one counts steps (``step_index``), the older one counts cycles
of two and says whose turn it is (``iteration`` and ``expected_actor``). Pure: who calls
reads the file, keeps the original beside it, and writes the head.

Not promised: that a file which contradicts itself can be used. A wrong guess would run a
step twice or never, so it is refused with what contradicts what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pydantic import ValidationError

from sequencer.errors import CorruptState, DefinitionChanged
from sequencer.model.head import MAX_COUNTER, Head, Status

OLD_CYCLE_LENGTH = 2
"""The older form knows one cycle: galph (the supervisor), then ralph (the main step)."""
_PLACES = {"galph": 0, "ralph": 1}
_REPLACED = frozenset(
    {
        "expected_actor",
        "expected_step",
        "iteration",
        "last_prompt",
        "last_update",
        "status",
        "step_index",
        "workflow_name",
    }
)
"""Fields of the old forms whose content the head says in its own way."""
_OURS = frozenset(Head.model_fields) - _REPLACED


def is_legacy(raw: Mapping[str, Any]) -> bool:
    """Return whether *raw*, the content of a state file, is of one of the two old forms.

    >>> is_legacy({"iteration": 3, "expected_actor": "ralph", "status": "waiting-ralph"})
    True
    >>> is_legacy({"schema_version": 1, "step_index": 5})
    False
    """
    has_counter = "step_index" in raw or "expected_actor" in raw
    return has_counter and not {"schema_version", "run_id", "revision"} & raw.keys()


def legacy_workflow(raw: Mapping[str, Any]) -> str | None:
    """Return the name of the workflow that an old state file names, if it names one."""
    name = raw.get("workflow_name")
    return name if isinstance(name, str) and name else None


def migrate(
    raw: Mapping[str, Any],
    *,
    new_run_id: str,
    workflow_name: str,
    digest: str,
    params: Mapping[str, int],
    expected_step_for: Callable[[int], str],
    at: str,
    cycle_length: int = OLD_CYCLE_LENGTH,
) -> Head:
    """Return the first head of a run that goes on where *raw* stands.

    Fields that this program has no use for (commits, ``lease_expires_at``) are kept. A
    step that was running counts as failed once: nobody knows how it ended.

    Raises:
        CorruptState: *raw* is of neither form, lacks what it needs, or contradicts itself.
        DefinitionChanged: *raw* was written under another workflow than *workflow_name*,
            or counts cycles of two where *workflow_name* has *cycle_length* steps.
    """
    _ensure_legacy(raw)
    _ensure_same_workflow(raw, workflow_name, cycle_length)
    step_index = _step_index(raw)
    status = _status(raw)
    last_prompt = raw.get("last_prompt")
    if last_prompt is not None and not isinstance(last_prompt, str):
        _refuse(f"last_prompt is {last_prompt!r} and not a name")
    kept = {field: value for field, value in raw.items() if field not in _REPLACED}
    try:
        return Head.model_validate(
            {
                **kept,
                "run_id": new_run_id,
                "workflow_name": workflow_name,
                "workflow_digest": digest,
                "params": dict(params),
                "step_index": step_index,
                "iteration": step_index + 1,
                "expected_step": expected_step_for(step_index),
                "status": status,
                "failures_in_row": 1 if status is Status.FAILED else 0,
                "last_prompt": last_prompt,
                "last_update": at,
            }
        )
    except ValidationError as error:
        _refuse(str(error.errors()[0]["msg"]), error)


def _ensure_legacy(raw: Mapping[str, Any]) -> None:
    if not is_legacy(raw):
        _refuse("it is not a state file of hoidn/orchestration")
    mixed = sorted(_OURS & raw.keys())
    if mixed:
        _refuse(f"it has fields of two programs: {', '.join(mixed)}")


def _ensure_same_workflow(raw: Mapping[str, Any], workflow_name: str, cycle_length: int) -> None:
    if "workflow_name" in raw and legacy_workflow(raw) is None:
        _refuse(f"workflow_name is {raw['workflow_name']!r} and not a name")
    written = legacy_workflow(raw)
    if written is not None and written != workflow_name:
        raise DefinitionChanged(
            f"the old state file is of workflow {written!r}, and the project runs "
            f"{workflow_name!r}",
            hint=f"set workflow.name to {written!r}, or move the state file away to begin anew",
        )
    if "step_index" not in raw and cycle_length != OLD_CYCLE_LENGTH:
        raise DefinitionChanged(
            f"the old state file counts cycles of {OLD_CYCLE_LENGTH} steps, and "
            f"{workflow_name!r} has {cycle_length}",
            hint="set workflow.name to 'standard', or move the state file away to begin anew",
        )


def _step_index(raw: Mapping[str, Any]) -> int:
    if "step_index" in raw and "expected_actor" in raw:
        _refuse("it has both step_index and expected_actor")
    if "step_index" in raw:
        step_index = _counter(raw, "step_index", 0)
        if "iteration" in raw and _counter(raw, "iteration", 1) != step_index + 1:
            _refuse(
                f"step_index {step_index} and iteration {raw['iteration']} contradict each other"
            )
        return step_index
    actor = raw["expected_actor"]
    if not isinstance(actor, str) or actor not in _PLACES:
        _refuse(f"expected_actor is {actor!r} and neither galph nor ralph")
    iteration = _counter(raw, "iteration", 1)
    return OLD_CYCLE_LENGTH * (iteration - 1) + _PLACES[actor]


def _counter(raw: Mapping[str, Any], field: str, least: int) -> int:
    value = raw.get(field)
    # Twice the iteration has to fit as well. JSON's true is an int to Python.
    if type(value) is int and least <= value <= MAX_COUNTER // 2:
        return value
    return _refuse(f"{field} is {value!r} and not a whole number from {least}")


def _status(raw: Mapping[str, Any]) -> Status:
    status = raw.get("status")
    if not isinstance(status, str):
        _refuse(f"status is {status!r} and not a word")
    word, _, actor = status.partition("-")
    if actor in _PLACES and "expected_actor" in raw and actor != raw["expected_actor"]:
        _refuse(f"status is {status!r}, and expected_actor is {raw['expected_actor']!r}")
    if word == "waiting" and actor:
        return Status.WAITING_NEXT
    if word == "running":
        return Status.FAILED
    whole = {
        "complete": Status.WAITING_NEXT,
        "failed": Status.FAILED,
        "idle": Status.IDLE,
    }
    if status not in whole:
        _refuse(f"status is {status!r}, which neither form has")
    return whole[status]


def _refuse(problem: str, cause: Exception | None = None) -> NoReturn:
    raise CorruptState(
        f"the old state file can't be carried over: {problem}",
        hint="correct it by hand, or move it away to begin at step_index 0; it is untouched",
    ) from cause
