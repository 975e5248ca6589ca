"""The result file, which an agent writes about its own attempt; its data is untrusted.

It can add an answer, report a failure and raise usage figures; it can't turn a failure into a
success. If the answer decides which way the run goes, the file is ignored: see
`answers.make_ignored_notifier`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from sequencer.errors import (
    CorruptState,
    SequencerError,
    StorageFailed,
    to_machine_busy,
    to_storage_failed,
)
from sequencer.executors.answers import Ignored, replace_surrogates, with_structured
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field, ValidationError
from sequencer.model.evidence import Evidence
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.whole_numbers import MAX_USED
from sequencer.store import folder as folders
from sequencer.store.ownership import explain_refusal

MAX_RESULT_BYTES = 1024 * 1024
_Tokens = Annotated[int, Field(ge=0, le=MAX_USED)]


class ResultRefused(SequencerError):
    """The result file is invalid; the step fails."""


class ResultUsage(Frozen, strict=True):
    """The usage that the agent reports; the larger of the reported and the observed is used."""

    cost_usd: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    input_tokens: _Tokens | None = None
    cache_read_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    seconds: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)


class Result(Frozen, strict=True):
    """The file's content; every key is optional."""

    status: Literal["ok", "failed", "complete", "nothing"] | None = None
    """nothing: there was nothing to do, and the output says why."""
    output: Any = None
    """The answer; a value that is not text is stored as JSON."""
    usage: ResultUsage = ResultUsage()


def make_folder(path: Path) -> None:
    """Create the folder of the result file *path* before an agent starts.

    Raises:
        StorageFailed: it can't be created, or it exists: another process may have put an
            answer in it.
    """
    try:
        folders.make_new_folder(path.parent)
    except OSError as error:
        hint = "free disk space or fix the permissions, then start again"
        reason, hint = explain_refusal(error, path.parent, hint)
        message = f"can't create the folder for the agent's result: {reason}"
        raise StorageFailed(message, where=str(path.parent), hint=hint) from error


def read_result(path: Path) -> Result | None:
    """Return what the agent wrote to *path*, or None if it wrote nothing.

    Raises:
        ResultRefused: it is a link, not a regular file, above 1 MiB, not strict JSON, or has
            an unknown value; a guess could accept a step that failed.
        StorageFailed: the disk can't read it, which is not the agent's fault.
        MachineBusy: this machine has no descriptor or memory for it.
    """
    try:
        data = folders.read_regular(path, max_bytes=MAX_RESULT_BYTES)
    except FileNotFoundError:
        return None
    except (CorruptState, OSError) as error:
        if (busy_error := to_machine_busy(error)) is not None:
            raise busy_error from error
        os_error = error if isinstance(error, OSError) else error.__cause__
        if isinstance(os_error, OSError) and to_storage_failed(os_error) is not None:
            message = f"the agent's result file can't be read: {os_error.strerror}"
            hint = "look at the disk, then start again"
            raise StorageFailed(message, where=str(path), hint=hint) from os_error
        _refuse(path, f"it {error.message if isinstance(error, CorruptState) else error}")
    if len(data) > MAX_RESULT_BYTES:
        _refuse(path, "it is larger than 1 MiB")
    try:
        result = Result.model_validate(_parse_strict_json(data))
    except ValidationError as error:
        place = "" if error.errors()[0]["loc"] else "the whole file: "
        _refuse(path, f"{place}{error.messages(with_values=False)[0]}")
    except (ValueError, RecursionError) as error:
        _refuse(path, f"it is not strict JSON: {error}")
    if result.status == "nothing" and not str(result.output or "").strip():
        _refuse(path, 'status "nothing" needs the reason in output')
    return result


def apply_result(path: Path, outcome: Outcome, ignored: Ignored = None) -> Outcome:
    """Return *outcome* with the values of the result file at *path*, if there is one.

    With *ignored* only the file's usage is used, because a forged usage helps no agent; *ignored*
    is called if the file says more. See `StepRequest.decides`.
    """
    try:
        result = read_result(path)
    except ResultRefused as refusal:
        if ignored is None:
            return _with_failure(outcome, str(refusal))
        result = Result(status="failed")
    if result is None:
        return outcome
    new_outcome = outcome.replace(usage=_max_usage(outcome.usage, result.usage))
    if ignored is not None:
        if result.output is not None or result.status is not None:
            ignored()
        return new_outcome
    if result.output is not None:
        new_outcome = new_outcome.replace(output=_to_text(result.output), structured=None)
        if not isinstance(result.output, str):
            new_outcome = with_structured(new_outcome, result.output)
    return _with_status(new_outcome, result) if outcome.is_accepted else new_outcome


def _with_status(new_outcome: Outcome, result: Result) -> Outcome:
    """Return *new_outcome*, an accepted outcome, with the status of *result*."""
    if result.status is None:
        return new_outcome
    if result.status == "failed":
        lines = new_outcome.output.strip().splitlines()
        reason_text = f": {lines[0][:300]}" if lines and result.output is not None else ""
        return _with_failure(
            new_outcome, f"the agent reported in its result file that it failed{reason_text}"
        )
    evidence = new_outcome.evidence and new_outcome.evidence.replace(is_stated=True)
    if result.status == "nothing":
        evidence = (new_outcome.evidence or Evidence()).replace(is_idle=True, is_stated=True)
        return new_outcome.replace(status=OutcomeStatus.OK, evidence=evidence)
    return new_outcome.replace(status=OutcomeStatus(result.status), evidence=evidence)


def _max_usage(observed_usage: Usage, reported_usage: ResultUsage) -> Usage:
    """Return the larger of *observed_usage* and *reported_usage*, figure by figure.

    An agent's report never helps it: it can't lower a figure, and it can't turn an unknown cost
    into a known one.
    """
    figures = reported_usage.model_dump(exclude_none=True)
    larger_figures = {
        name: value for name, value in figures.items() if value > getattr(observed_usage, name)
    }
    if "cost_usd" in larger_figures:
        larger_figures["estimated_usd"] = 0.0
    return observed_usage.replace(**larger_figures) if larger_figures else observed_usage


def _with_failure(outcome: Outcome, message: str) -> Outcome:
    if outcome.is_accepted:
        update = {"status": OutcomeStatus.FAILED, "error": message}
        return outcome.replace(**update)
    if outcome.status is OutcomeStatus.FAILED:
        # The process failed first, so its reason comes first.
        return outcome.replace(error=f"{outcome.error}\n{message}")
    return outcome


def _parse_strict_json(data: bytes) -> Any:
    return json.loads(
        data.decode("utf-8"), object_pairs_hook=_reject_duplicates, parse_constant=_refuse_constant
    )


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key appears twice")
    return mapping


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _to_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return replace_surrogates(text)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ResultRefused(
        f"the agent's result file is invalid: {reason}",
        where=str(path),
        hint='write {"status": "ok"|"failed"|"complete"|"nothing", "output": …, "usage": {…}}, '
        "or no file",
    )
