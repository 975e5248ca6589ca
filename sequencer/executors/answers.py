"""What an agent answered: its result file, its answer in a form, and whether all is done.

The result file is data from an agent and trusted for nothing: see `apply_result`. A client
that knows schemas is told the step's, in its own dialect; whether the answer fits is checked
elsewhere, for every executor alike. The mark of `complete_when` has to stand alone on a line:
an agent that quotes its prompt in the middle of a sentence has not finished anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from sequencer.errors import CorruptState, SequencerError, StorageFailed
from sequencer.model.fields import Field, ValidationError
from sequencer.model.frozen import Frozen
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Step
from sequencer.store import folder as folders

MAX_BYTES = 1024 * 1024
_Tokens = Annotated[int, Field(ge=0, le=2**53)]


class ResultRefused(SequencerError):
    """The result file can't be taken for what its agent meant; the step fails."""


class ResultUsage(Frozen, strict=True):
    """What the agent says that it has used; the larger of that and what was observed counts."""

    cost_usd: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    seconds: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)


class Result(Frozen, strict=True):
    """The file's content; every key may be left out."""

    status: Literal["ok", "failed", "complete"] | None = None
    output: Any = None
    """The answer; what is not a text is kept as JSON."""
    usage: ResultUsage = ResultUsage()


def make_folder(path: Path) -> None:
    """Make the folder of the result file *path*, where an agent is going to write.

    Raises:
        StorageFailed: it can't be made, or somebody has made it before and may have left
            an answer in it.
    """
    try:
        folders.make_fresh(path.parent)
    except OSError as error:
        raise StorageFailed(
            f"the folder for the agent's result can't be made: {error.strerror}",
            where=str(path.parent),
            hint="make room or mend the permissions, then start again",
        ) from error


def read_result(path: Path) -> Result | None:
    """Return what the agent wrote to *path*, or None if it wrote nothing.

    Raises:
        ResultRefused: it is a link, no regular file, above 1 MiB, no strict JSON, or says
            something that has no meaning; guessing could accept a step that failed.
    """
    try:
        data = folders.read_regular(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        return None
    except CorruptState as error:
        _refuse(path, f"it {error.message}")
    if len(data) > MAX_BYTES:
        _refuse(path, "it is larger than 1 MiB")
    try:
        return Result.model_validate(_strict_json(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        _refuse(path, f"{place}: {first['msg']}")
    except (ValueError, RecursionError) as error:
        _refuse(path, f"it is not strict JSON: {error}")


def apply_result(path: Path, outcome: Outcome) -> Outcome:
    """Return *outcome* with what the result file at *path* says, if there is one."""
    try:
        result = read_result(path)
    except ResultRefused as refusal:
        return _with_failure(outcome, str(refusal))
    if result is None:
        return outcome
    changed = outcome.replace(usage=_larger(outcome.usage, result.usage))
    if result.output is not None:
        changed = changed.replace(output=_text(result.output), structured=None)
        if not isinstance(result.output, str):
            changed = with_structured(changed, result.output)
    if not outcome.is_accepted or result.status is None:
        return changed
    if result.status == "failed":
        lines = changed.output.strip().splitlines()
        why = f": {lines[0][:300]}" if lines and result.output is not None else ""
        return _with_failure(changed, f"the agent reported in its result file that it failed{why}")
    return changed.replace(status=OutcomeStatus(result.status))


def _larger(observed: Usage, told: ResultUsage) -> Usage:
    """Return *observed* with what is more in *told*, figure by figure.

    What an agent says about itself never helps it: it can't lower a figure, and can't make
    a cost known that its client did not tell.
    """
    said = told.model_dump(exclude_none=True)
    more = {name: value for name, value in said.items() if value > getattr(observed, name)}
    if "cost_usd" in more:
        more["estimated_usd"] = 0.0
    return observed.replace(**more) if more else observed


def _with_failure(outcome: Outcome, message: str) -> Outcome:
    if outcome.is_accepted:
        update = {"status": OutcomeStatus.FAILED, "error": message}
        return outcome.replace(**update)
    if outcome.status is OutcomeStatus.FAILED:
        # The process failed first; its own reason stays on top.
        return outcome.replace(error=f"{outcome.error}\n{message}")
    return outcome


def _strict_json(data: bytes) -> Any:
    return json.loads(
        data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # JSON can spell half a surrogate pair, which no UTF-8 file could hold later.
    return text.encode("utf-8", "replace").decode("utf-8")


def _refuse(path: Path, why: str) -> NoReturn:
    raise ResultRefused(
        f"the agent's result file is invalid: {why}",
        where=str(path),
        hint='write {"status": "ok"|"failed"|"complete", "output": …, "usage": {…}} or no file',
    )


MAX_ARGUMENT_BYTES = 100_000
"""One argument of a program ends at 128 KiB."""
MAX_ANSWER_CHARS = 1024 * 1024


def schema_of(step: Step) -> dict[str, Any] | None:
    """Return the JSON Schema of the step's answer, if it has one."""
    return None if step.output is None else step.output.json_schema


def schema_text(step: Step) -> str | None:
    """Return the schema of *step* as one argument of a program.

    Raises:
        ValueError: it is too long for that.
    """
    schema = schema_of(step)
    if schema is None:
        return None
    text = json.dumps(schema, separators=(",", ":"))
    if len(text) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"output.schema is longer than {MAX_ARGUMENT_BYTES} bytes; shorten it")
    return text


def closed(schema: Any) -> Any:
    """Return *schema* as OpenAI's strict mode wants it: closed objects, every key required.

    An answer that fits it fits *schema* too, as long as that says nothing of other keys.

    >>> closed({"type": "object", "properties": {"pass": {"type": "boolean"}}})["required"]
    ['pass']
    """
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    properties = schema.get("properties")
    # A property may itself be called "properties" or "type"; those hold no list of names.
    if schema.get("type") == "object" and isinstance(properties, dict):
        made |= {"additionalProperties": False, "required": list(properties)}
    return made


def parsed(text: str) -> Any:
    """Return the JSON that *text* is, or None."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def with_structured(outcome: Outcome, value: Any) -> Outcome:
    """Return *outcome* with the answer as JSON, in its output too if that is empty.

    What no JSON file could hold is left out (Infinity) or replaced (half a surrogate pair).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return outcome
    text = text.encode("utf-8", "replace").decode("utf-8")
    update = {"structured": json.loads(text)}
    if not outcome.output and value is not None:
        update["output"] = text
    return outcome.replace(**update)


def sample(schema: dict[str, Any]) -> Any:
    """Return a plain value of the form that *schema* asks for; it need not fit in every detail.

    >>> sample({"type": "object", "properties": {"pass": {"type": "boolean"}}})
    {'pass': True}
    """
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if schema.get("type") == "object":
        properties = schema.get("properties")
        parts = properties.items() if isinstance(properties, dict) else ()
        return {name: sample(part) for name, part in parts if isinstance(part, dict)}
    plain = {"boolean": True, "integer": schema.get("minimum", 0), "number": 0, "array": []}
    return None if schema.get("type") == "null" else plain.get(str(schema.get("type")), "")


def apply_completion(step: Step, outcome: Outcome) -> Outcome:
    r"""Return *outcome*, complete if it is ok and its output has the step's mark.

    >>> step = Step(name="main", complete_when="ALL DONE")
    >>> apply_completion(step, Outcome(status="ok", output="Tests pass.\n  ALL DONE\n")).status
    <OutcomeStatus.COMPLETE: 'complete'>
    >>> apply_completion(step, Outcome(status="ok", output="I am not ALL DONE yet")).status
    <OutcomeStatus.OK: 'ok'>
    """
    if not isinstance(step.complete_when, str) or outcome.status is not OutcomeStatus.OK:
        return outcome
    mark = step.complete_when.strip()
    if mark and any(line.strip() == mark for line in outcome.output.splitlines()):
        return outcome.replace(status=OutcomeStatus.COMPLETE)
    return outcome
