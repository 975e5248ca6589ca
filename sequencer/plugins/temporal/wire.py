"""The plain data that processes exchange: heads, attempts' ends, errors and work orders.

The data is small, because each step writes a head into the server's history. It leaves out what
a reader knows already: defaults, the owner of a claim, and what never changes in a run.
`unpack_head` returns exactly the head that `pack_head` was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, convert, to_builtins

from sequencer import errors
from sequencer.errors import NewerSchema, SequencerError, StorageFailed
from sequencer.model.answers import find_decision
from sequencer.model.evidence import read_evidence
from sequencer.model.graph.choices import find_candidates
from sequencer.model.head import SCHEMA_VERSION, Claim, Head, Owner
from sequencer.model.kind import AttemptResult
from sequencer.model.outcome import (
    Decision,
    Outcome,
    OutcomeStatus,
    Quota,
    SessionFault,
    Verdict,
    read_usage,
)
from sequencer.model.sequence.order import find_step_ref
from sequencer.model.sequence.sequence_kind import Continuation, ContinuationKind
from sequencer.model.step import Retry, Step
from sequencer.model.transitions import Fact, StepRef
from sequencer.model.workflow import Workflow

EDITION = 2
"""Version of the workflows' decisions, and of the form of memo, work orders, tickets and reports.

Each change of these adds one: workers that know the new edition then continue the runs; see
CONTRIBUTING.md. Releases with the same edition can work side by side."""
FIRST_SCHEMA = 1
"""Schema version of a head that does not state one."""
HOST = "fleet"
"""Stands for the machine in a claim: any worker may take its attempt."""
RUN, HEAD, FACTS, DETACHED, COUNTED = "run", "head", "facts", "detached", "counted"
"""Keys of the memo: the constant part of the head, the changing part, the newest facts, work
orders that no process waits for, and their counts. Every other key is a document of the run."""
_OWN_KEYS = frozenset({RUN, HEAD, FACTS, DETACHED, COUNTED})
MERGED = "merged"
"""Key of the changes to an attempt's record after its work was merged."""
BEFORE = "before"
"""Key of the earlier facts, for the first execution of a run that moved to the server."""
DOCUMENT_BYTES = 1024 * 1024
"""Limit of a run's documents: a server refuses a memo of more than 2 MiB, and ends the run."""
ANSWER_BYTES = 64 * 1024
"""Limit of an answer that is sent; a larger one stays on the machine that has it."""
ERROR_CHARS, SAID_CHARS = 16 * 1024, 1000
UPDATE = "update sequencer on this machine"
_CONSTANT = frozenset(
    {"run_id", "run_name", "workflow_name", "workflow_digest", "params", "has_definition"}
)
_DERIVED = frozenset({"schema_version", "iteration", "journal_offset"})


def build_run_owner(run_id: str) -> Owner:
    """Return the owner of all claims of the run *run_id*: the run, as any worker may take them."""
    return Owner(host=HOST, boot_id="", pid_ns="", pid=0, pid_start=0, nonce=run_id)


def documents_in(memo: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documents of the run with this *memo*."""
    return {key: value for key, value in memo.items() if key not in _OWN_KEYS}


def measure_documents(documents: Mapping[str, str | None]) -> dict[str, int]:
    """Return the size in bytes of each of *documents* in a memo."""
    return {name: len(json.dumps(text)) for name, text in documents.items() if text is not None}


def ensure_documents_fit(sizes: Mapping[str, int]) -> None:
    """Check that documents of these *sizes* fit into the memo of one run.

    Raises:
        StorageFailed: they are too large.
    """
    if (size := sum(sizes.values())) > DOCUMENT_BYTES:
        raise StorageFailed(
            f"the run's documents have {size} bytes; a Temporal server keeps at most "
            f"{DOCUMENT_BYTES} for one run",
            hint="keep it in files or git; 'sequencer sync --to file' moves a run that has started",
        )


def pack_head(head: Head) -> dict[str, dict[str, Any]]:
    """Return *head* in two parts: what never changes in a run, and what does."""
    data = head.model_dump(mode="json", exclude_defaults=True)
    constant = {key: value for key, value in data.items() if key in _CONSTANT}
    changes = {key: value for key, value in data.items() if key not in _CONSTANT | _DERIVED}
    if head.iteration != head.step_index + 1:
        changes["iteration"] = head.iteration
    if head.schema_version != FIRST_SCHEMA:
        changes["schema_version"] = head.schema_version
    if head.claims:
        changes["claims"] = [_pack_claim(claim, head) for claim in head.claims]
    return {RUN: constant, HEAD: changes}


def _pack_claim(claim: Claim, head: Head) -> dict[str, Any]:
    data = claim.model_dump(mode="json", exclude_defaults=True)
    defaults = {"owner": build_run_owner(head.run_id), "step_index": head.step_index}
    defaults |= {"step": head.expected_step, "claimed_at": head.last_update}
    return {
        key: value
        for key, value in data.items()
        if key not in defaults or getattr(claim, key) != defaults[key]
    }


def unpack_head(memo: Mapping[str, Any]) -> Head:
    """Return the head whose parts, as `pack_head` made them, are in *memo*.

    Raises:
        NewerSchema: a newer release has written it.
    """
    constant, changes = memo[RUN], memo[HEAD]
    if (version := changes.get("schema_version", FIRST_SCHEMA)) > SCHEMA_VERSION:
        message = f"schema_version {version} is newer than {SCHEMA_VERSION}"
        raise NewerSchema(message, where=constant["run_id"], hint=UPDATE)
    index, run_id = changes.get("step_index", 0), constant["run_id"]
    defaults = {
        "owner": build_run_owner(run_id),
        "step_index": index,
        "step": changes["expected_step"],
        "claimed_at": changes["last_update"],
    }
    claims = [{**defaults, **claim} for claim in changes.get("claims", ())]
    return Head.model_validate({"iteration": index + 1, **constant, **changes, "claims": claims})


def pack_fact(fact: Fact, record: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return *fact* as plain data, its outcome without what the attempt's *record* has."""
    data: dict[str, Any] = {"event": str(fact.event), "step": fact.step}
    data |= {"step_index": fact.step_index, "token": fact.token, "attempt": fact.attempt}
    if fact.outcome is not None:
        outcome, record_data = dict(fact.outcome), record or {}
        is_in_outcome = record is not None and record_data.items() <= outcome.items()
        data["outcome"] = outcome
        if is_in_outcome:
            data["outcome"] = {
                key: value for key, value in outcome.items() if key not in record_data
            }
            # Readers take the rest from the attempt's report.
            data["told"] = True
    return data


def unpack_fact(
    data: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the fact that `pack_fact` was given, as ``history --json`` prints it.

    *records* has the records of attempts, by token.
    """
    outcome = data.get("outcome")
    if data.get("told"):
        outcome = {**records.get(data["token"], {}), **outcome} if outcome else None
        outcome = outcome or dict(records.get(data["token"], {}))
    names = ("event", "step", "step_index", "token", "attempt")
    return {**{name: data[name] for name in names}, "outcome": outcome}


# --- a workflow --------------------------------------------------------------------


def pack_workflow(workflow: Workflow) -> dict[str, Any]:
    """Return *workflow* as plain data for `Workflow.model_validate`, with outputs' schemas."""
    return workflow.model_dump(mode="json", exclude_defaults=True, by_alias=True)


# --- errors ------------------------------------------------------------------------


def pack_error(error: BaseException) -> dict[str, Any]:
    """Return *error* as plain data; an empty type stands for a bug."""
    if not isinstance(error, SequencerError):
        return {"type": "", "message": f"{type(error).__name__}: {error}"}
    data = {"type": type(error).__name__, "message": error.message}
    fields = {"where": error.where, "hint": error.hint}
    return data | {key: value for key, value in fields.items() if value is not None}


def unpack_error(facts: Mapping[str, Any]) -> Exception:
    """Return the error that `pack_error` was given; a `RuntimeError` for an unknown type."""
    kind = getattr(errors, facts["type"] or "-", None)
    if not (isinstance(kind, type) and issubclass(kind, SequencerError)):
        return RuntimeError(facts["message"])
    # Some classes build their message from other arguments, so their own __init__ is skipped.
    error = kind.__new__(kind)
    SequencerError.__init__(
        error, facts["message"], where=facts.get("where"), hint=facts.get("hint")
    )
    return error


# --- an attempt --------------------------------------------------------------------


class Ticket(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A worker's instructions for one attempt; everything else is in the run.

    A worker that does not know all of its fields makes no attempt.
    """

    token: int
    cost_usd: float | None = None
    timeout_s: float | None = None
    has_code: bool = False
    """The run's code moves through git, so only a clone can make the attempt."""
    merge: dict[str, Any] | None = None
    """The work of an ended attempt, to merge with the work that was accepted in the meantime."""


class AttemptReport(Struct, frozen=True, omit_defaults=True):
    """How an attempt ended, as its worker reports it."""

    record: dict[str, Any]
    """For the journal; it has most of the outcome."""
    ending: dict[str, Any] | None = None
    """How a sequence continues; None in a graph."""
    output: str | None = None
    """The output, if the record does not have it."""
    said: str | None = None
    """The part that may pick the next node, if the output is too large to travel."""
    error: str | None = None
    """The error's text, if the record does not have it."""
    structured: Any = None
    session: str | None = None
    session_steps: int = 1
    context_tokens: int | None = None
    session_fault: str | None = None
    is_unexplained: bool = False
    not_before: str | None = None
    is_timed_out: bool = False
    is_final: bool = False
    verdict: Verdict | None = None
    retry: dict[str, Any] | None = None
    """The step's retry rules, which may come from the project's defaults."""
    reference: str | None = None
    """Name under which a graph keeps the output."""
    postponed: str | None = None
    raised: dict[str, Any] | None = None
    """The error that was raised instead of a result; it ends the invocation."""
    left: str | None = None
    """The process that made the attempt, if it was interrupted and is ending."""


def pack_report(
    ended: AttemptResult, error: BaseException | None, left: str | None
) -> dict[str, Any]:
    """Return the report of *ended*; *error* is what its attempt raised.

    *left* is the worker's `identity` if that process is ending.
    """
    outcome, ending = ended.outcome, ended.ending
    record, step = dict(ended.record), ended.step
    output = None if "output" in record else _limit_size(outcome.output)
    error_text = None if outcome.error == record.get("error") else outcome.error
    report = AttemptReport(
        record,
        ending=None if ending is None else _pack_ending(ending),
        output=output,
        said=None if output or "output" in record else _shorten_answer(outcome.output),
        error=None if error_text is None else error_text[:ERROR_CHARS],
        structured=outcome.structured if _limit_size(str(outcome.structured)) else None,
        session=outcome.session_id,
        session_steps=outcome.session_steps,
        context_tokens=outcome.context_tokens,
        session_fault=outcome.session_fault,
        is_unexplained=outcome.is_unexplained,
        not_before=outcome.not_before,
        is_timed_out=outcome.is_timed_out,
        is_final=ended.is_final,
        verdict=ended.verdict,
        retry=None if step.retry is None else step.retry.model_dump(exclude_defaults=True),
        reference=ended.reference,
        postponed=ended.postponed,
        raised=None if error is None else pack_error(error),
        left=left if outcome.status is OutcomeStatus.INTERRUPTED else None,
    )
    data: dict[str, Any] = to_builtins(report)
    return data


def _shorten_answer(output: str) -> str | None:
    """Return a short text that picks the same node as *output*."""
    candidates = [text for text in find_candidates(output) if text and len(text) <= SAID_CHARS]
    if not candidates or find_decision(output) is None:
        return next(iter(candidates), None)
    # The object comes first, then the last line.
    return "\n".join((json.dumps({"decision": candidates[0]}), *candidates[1:2]))


def _limit_size(text: str) -> str | None:
    """Return *text* if it is small enough to travel; None for an empty one."""
    is_fitting = text and len(text.encode("utf-8", "replace")) <= ANSWER_BYTES
    return text if is_fitting else None


def _pack_ending(ending: Continuation) -> dict[str, Any]:
    to = None if ending.following is None else ending.following.step_index
    done = "done_after_gate" if ending.has_gate else "done"
    fields = {"to": to, "gate": ending.has_gate, done: ending.is_done, "error": ending.error}
    filled_fields = {
        key: value for key, value in fields.items() if value is not None and value is not False
    }
    return {"kind": str(ending.kind), **filled_fields}


def amend_report(report: dict[str, Any], merged: dict[str, Any]) -> dict[str, Any]:
    """Return the *report* of an attempt with the changes to its record from *merged*."""
    record = {**report["record"], **merged}
    return {**report, "record": {key: value for key, value in record.items() if value is not None}}


def unpack_result(
    report: AttemptReport, claim: Claim, ref: StepRef, step: Step, workflow: Workflow
) -> AttemptResult:
    """Return the result in *report* of the attempt of *claim* at *step*, which is at *ref*."""
    record, ending, decision = report.record, None, None
    if report.retry is not None:
        step = step.replace(retry=Retry.model_validate(report.retry))
    if (data := report.ending) is not None:
        to = data.get("to")
        ending = Continuation(
            ContinuationKind(data["kind"]),
            None if to is None else find_step_ref(workflow, to),
            has_gate=data.get("gate", False),
            # Earlier releases wrote "done" at a gate, too, but approval did not complete the run.
            is_done=data.get("done_after_gate" if data.get("gate") else "done", False),
            error=data.get("error"),
        )
    if "decision" in record:
        decision = convert(record["decision"], Decision)
    return AttemptResult(
        _restore_outcome(report, record),
        step,
        ref,
        record.get("agent", ""),
        claim.token,
        claim.attempt,
        verdict=report.verdict,
        decision=decision,
        is_final=report.is_final,
        began_at=record.get("began_at"),
        ending=ending,
        record=record,
        postponed=report.postponed,
    )


def _restore_outcome(report: AttemptReport, record: Mapping[str, Any]) -> Outcome:
    fault = report.session_fault
    return Outcome(
        status=OutcomeStatus(record["status"]),
        output=report.output or record.get("output") or report.said or "",
        structured=report.structured,
        error=report.error or record.get("error"),
        usage=read_usage(record.get("usage", {})),
        session_id=report.session,
        session_steps=report.session_steps,
        context_tokens=report.context_tokens,
        session_fault=None if fault is None else SessionFault(fault),
        is_unexplained=report.is_unexplained,
        is_timed_out=report.is_timed_out,
        denials=tuple(record.get("denials", ())),
        quota=Quota.model_validate(record["quota"]) if "quota" in record else None,
        exit_code=record.get("exit_code"),
        not_before=report.not_before,
        prompt=record.get("prompt"),
        evidence=read_evidence(record),
        missing=record.get("missing"),
    )


def pack_facts(
    facts: Sequence[Fact], reported: tuple[int, Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return *facts* as plain data; *reported* is an attempt's token and its known record."""
    token, record = reported or (0, None)
    return [pack_fact(fact, record if fact.token == token else None) for fact in facts]


# --- requests to a run -------------------------------------------------------------
#
# Anyone with a key of the server's namespace can send them. A handler that raises stops its run
# until a person repairs it, so whatever could make it raise is refused first.

LONGEST_TTL_S = 86_400.0
_WORK_ORDER_ID = re.compile(r"[0-9a-f]{32}")


def worker_name(who: str) -> str:
    """Return the part of the `identity` *who* that people read.

    >>> worker_name("12@there#m/b/n/7"), worker_name("12@there")
    ('12@there', '12@there')
    """
    return who.partition("#")[0]


_QUEUE = re.compile(r"(?P<project>[^@]+)@(?P<edition>[0-9]{1,6})(?:/(?P<place>.+))?", re.DOTALL)


def is_work_order_id(value: object) -> bool:
    """Return whether *value* may be the id of a work order."""
    return isinstance(value, str) and _WORK_ORDER_ID.fullmatch(value) is not None


def is_successor_queue(queue: object, own: str) -> bool:
    """Return whether *queue* has the same project and place as *own*, and no older edition.

    >>> is_successor_queue("seq/shop@7/gpu", "seq/shop@6/gpu")
    True
    >>> [is_successor_queue(name, "seq/shop@6") for name in ("x", "seq/other@7", "seq/shop@5")]
    [False, False, False]
    """
    new_match = _QUEUE.fullmatch(queue) if isinstance(queue, str) else None
    own_match = _QUEUE.fullmatch(own)
    if new_match is None or own_match is None:
        return False
    is_same_place = (
        new_match["project"] == own_match["project"] and new_match["place"] == own_match["place"]
    )
    return is_same_place and int(new_match["edition"]) >= int(own_match["edition"])


def ensure_work_order(data: Mapping[str, Any], own: str) -> None:
    """Check that the work order in *data* is valid: its id, times, and a queue of *own*'s project.

    Raises:
        ValueError: it is not.
    """
    if not is_work_order_id(data["id"]) or not isinstance(data["by"], str) or "kept" in data:
        raise ValueError("no process issues such a work order")
    ttl_s, places = data["ttl_s"], data.get("places", 1)
    if type(ttl_s) not in (int, float) or not 0 < ttl_s <= LONGEST_TTL_S:
        raise ValueError(f"ttl_s is {ttl_s!r}")
    if type(places) is not int or places < 1:
        raise ValueError(f"places is {places!r}")
    queue, project = data.get("queue"), own.partition("@")[0]
    if queue is not None and not (isinstance(queue, str) and queue.startswith(f"{project}@")):
        raise ValueError("its queue is another project's")


def ensure_change(change: Mapping[str, Any]) -> None:
    """Check that *change* has facts, and its documents and outputs are texts.

    Raises:
        ValueError: it is not valid.
    """
    facts = change[FACTS]
    if not isinstance(facts, list) or not all(isinstance(fact, dict) for fact in facts):
        raise ValueError("its facts are not a list of objects")
    for fact in facts:
        unpack_fact(fact, {})
    outputs, documents = change.get("outputs", {}), change.get("documents", {})
    if not all(isinstance(text, str) for text in outputs.values()):
        raise ValueError("an output is not a text")
    if not all(isinstance(text, str | None) for text in documents.values()):
        raise ValueError("a document is not a text")
