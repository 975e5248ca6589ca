"""What the journal keeps of an attempt, and where an output goes that is too large for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sequencer.engine.attempt import Prepared
from sequencer.errors import SequencerError, StorageFailed, out_of_resources
from sequencer.model.evidence import Evidence
from sequencer.model.kind import Performed
from sequencer.model.net.choices import picks_a_way
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.step import Output, Step
from sequencer.model.workflow import Workflow, graph_of
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.workflows.prompts import parsed
from sequencer.workflows.verdicts import check_schema, verdict_of

ID_CHARS = 200
"""Longest id of a conversation; it comes from a client, whom nobody trusts."""
INLINE_BYTES = 4 * 1024
"""A larger output goes to the results folder instead of the journal record."""


def chance() -> float:
    """Return a random number below 1; the module `random` would cost each tick its import."""
    return int.from_bytes(os.urandom(4), "big") / 2**32


def shown_log(path: str | None, project: Path) -> str | None:
    """Return a step log's path as records have it: relative to *project* if it is inside."""
    return None if path is None else path.removeprefix(f"{project}{os.sep}")


def journal_record(
    outcome: Outcome, agent: str, log: str | None, output: dict[str, Any]
) -> dict[str, Any]:
    """Return what the journal keeps of *outcome*; *output* is inline or a reference."""
    record: dict[str, Any] = {
        "status": str(outcome.status),
        "agent": agent,
        "prompt": outcome.prompt,
        "log": log,
        **output,
        "output_cut_from": outcome.cut_from_bytes,
        "usage": {name: value for name, value in vars(outcome.usage).items() if value},
        "error": outcome.error[:4000] if outcome.error else None,
        "denials": [line[:200] for line in outcome.denials[:20]] if outcome.denials else None,
        "exit_code": outcome.exit_code,
        "session": None if outcome.session_id is None else shown_session(outcome.session_id),
        "quota": None if outcome.quota is None else outcome.quota.model_dump(),
        "evidence": None if outcome.evidence is None else shown(outcome.evidence),
    }
    return {key: value for key, value in record.items() if value is not None}


def shown(evidence: Evidence) -> dict[str, Any] | None:
    """Return what the journal keeps of *evidence*: what is not as usual; None: nothing."""
    return evidence.model_dump(mode="json", exclude_defaults=True) or None


def shown_session(mark: str) -> str | None:
    r"""Return the client's own id of a conversation, without what its executor has noted beside it.

    >>> shown_session("0199;cost_usd=0.5"), shown_session("a\nb"), shown_session("")
    ('0199', None, None)
    """
    found = mark.partition(";")[0]
    return found if found.isascii() and found.isprintable() and 0 < len(found) <= ID_CHARS else None


def broken(error: BaseException, usage: Usage, redact: Callable[[str], str]) -> Outcome:
    """Return how an attempt has ended that has raised *error*, and has used *usage* by then.

    A bug is a failure. A refusal, an interrupt and a machine that has no more processes or
    descriptors are none.
    """
    is_meant = isinstance(error, SequencerError) or not isinstance(error, Exception)
    is_bug = not is_meant and out_of_resources(error) is None
    status = OutcomeStatus.FAILED if is_bug else OutcomeStatus.INTERRUPTED
    return Outcome(status=status, error=redact(repr(error)), usage=usage)


def circumstances(performed: Performed) -> dict[str, Any]:
    """Return when *performed* began, its model, its note, and what a hook decided, if known."""
    step = performed.step
    known = {"model": step.model, "began_at": performed.began_at, "note": performed.note}
    found: dict[str, Any] = {key: value for key, value in known.items() if value is not None}
    if (decision := performed.decision) is not None:
        told = {"move": str(decision.move), "target": decision.target, "reason": decision.reason}
        found["decision"] = {key: value for key, value in told.items() if value}
    return found


def performed_record(
    performed: Performed, log: str | None, output: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Return what the journal keeps of *performed*, which judged for the *rounds*-th time."""
    record = journal_record(performed.outcome, performed.agent, log, output)
    if performed.log is not None:
        record |= circumstances(performed)
    verdict = performed.verdict
    if verdict is not None:
        record["verdict"] = {"pass": verdict.is_pass, "source": verdict.source, "round": rounds}
        if verdict.reason:
            record["verdict"]["reason"] = verdict.reason
    return record


def keep_output(outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Return the output for the record; a large one goes to *folder*, which else goes."""
    data = outcome.output.encode("utf-8", "replace")
    if len(data) <= INLINE_BYTES:
        _remove(folder)
        return {"output": outcome.output} if outcome.output else {}
    try:
        results.keep(folder, data)
    except OSError as error:
        raise StorageFailed(
            f"the step's output can't be saved: {error.strerror}", where=str(folder)
        ) from error
    reference = {"output_file": f"results/{folder.name}/output.txt"}
    return {**reference, "output_bytes": len(data)}


def _remove(folder: Path) -> None:
    """Remove an attempt's folder, whose content has been read into the outcome."""
    if not os.access(folder, os.F_OK):
        return  # most often: nobody had anything to write there
    folders.remove_tree(folder)


VERDICT_OUTPUT = Output(
    format="json",
    schema={
        "type": "object",
        "properties": {"pass": {"type": "boolean"}, "reason": {"type": "string"}},
        "required": ["pass", "reason"],
        "additionalProperties": False,
    },
)
"""What a step that judges is to answer, for clients that can be told."""


def judged(performed: Performed, *, is_command: bool) -> Performed:
    """Return *performed* with the verdict of a step that judges.

    A "no" reads as a failure in log and journal; what follows is the loop's to say.
    """
    step, outcome = performed.step, performed.outcome
    if step.validation is None or performed.place.stage == "fix":
        return performed
    has_ended = outcome.exit_code is not None and outcome.exit_code >= 0
    if not outcome.is_accepted and not (is_command and has_ended):
        return performed
    verdict = verdict_of(outcome, is_command=is_command)
    if not verdict.is_pass:
        error = f"the answer is no: {verdict.reason}"
        outcome = outcome.replace(status=OutcomeStatus.FAILED, error=error)
    return replace(performed, outcome=outcome, verdict=verdict)


def decides(workflow: Workflow, step: Step, stage: str = "step") -> bool:
    """Return whether the answer of *step* decides which way a run of *workflow* goes.

    A step that judges does, and a node whose output picks one of several edges.
    """
    if step.validation is not None and stage != "fix":
        return True
    is_node = any(node.id == step.name for node in workflow.nodes)
    return is_node and picks_a_way(graph_of(workflow), step.name)


def as_asked(prepared: Prepared) -> tuple[Step, str, str | None]:
    """Return the step, the prompt and the added system prompt as the executor gets them."""
    step, prompt, added = prepared.step, prepared.prompt, prepared.append_system_prompt
    if step.validation is not None and step.output is None and prepared.place.stage == "step":
        step = step.replace(output=VERDICT_OUTPUT)
    if added and "append_system_prompt" not in prepared.executor.supported_fields:
        # A client without a place for it hears it first.
        prompt, added = f"{added}\n\n---\n\n{prompt}", None
    return step, prompt, added


def checked(step: Step, outcome: Outcome) -> Outcome:
    """Return *outcome*, failed if its answer is not what the step's schema asks for."""
    schema = step.output.json_schema if step.output is not None else None
    if schema is None or not outcome.is_accepted:
        return outcome
    try:
        value = outcome.structured if outcome.structured is not None else parsed(outcome.output)
        problem = check_schema(schema, value)
    except KeyError:
        problem = "it is not JSON"
    if problem is None:
        return outcome
    error = f"the answer does not match the step's schema: {problem}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error)


def redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """Return a structured answer without secrets, as its text is.

    Where a secret ended in its grammar as JSON, it is the text itself.
    """
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    hidden = redact(text)
    if hidden == text:
        return value
    try:
        return json.loads(hidden)
    except ValueError:
        return hidden


def apply_completion(step: Step, outcome: Outcome) -> Outcome:
    r"""Return *outcome*, complete if it is ok and its output has the step's mark.

    The mark has to stand alone on a line: an agent that quotes its prompt in the middle of a
    sentence has not finished anything.

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
