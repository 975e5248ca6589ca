"""How a run, an attempt's end and a refusal look as plain data between processes.

Small: each step writes a head into the server's history. What a reader knows by itself (the
defaults, the owner of a claim, what never changes in a run) is left out. `head_of` gives back
exactly what `packed` was given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, convert, to_builtins

from sequencer import errors
from sequencer.errors import NewerSchema, SequencerError, StorageFailed
from sequencer.model.answers import decision_in
from sequencer.model.evidence import evidence_of
from sequencer.model.graph.choices import candidates
from sequencer.model.head import SCHEMA_VERSION, Claim, Head, Owner
from sequencer.model.kind import AttemptResult
from sequencer.model.outcome import (
    Decision,
    Outcome,
    OutcomeStatus,
    Quota,
    SessionFault,
    Verdict,
    used,
)
from sequencer.model.sequence.order import place
from sequencer.model.sequence.sequence_kind import Continuation, ContinuationKind
from sequencer.model.step import Retry, Step
from sequencer.model.transitions import Fact, StepRef
from sequencer.model.workflow import Workflow

EDITION = 1
"""Of what workflows decide, and of how memo, permits, tickets and reports look.

One more with each change of these: runs then continue with those who know it; see
CONTRIBUTING.md. A release that changes none of them works beside the one before."""
FIRST_SCHEMA = 1
"""Of a head that does not say its own."""
HOST = "fleet"
"""What stands in a claim in place of a machine: any worker may take its attempt."""
RUN, HEAD, FACTS, DETACHED, COUNTED = "run", "head", "facts", "detached", "counted"
"""Keys of the memo: what stays, what changes, the newest facts, permits that no process waits
for, and what these have counted. Every other one is a document of the run."""
_OWN_KEYS = frozenset({RUN, HEAD, FACTS, DETACHED, COUNTED})
MERGED = "merged"
"""Key of what becomes of an attempt's record when its work was merged."""
BEFORE = "before"
"""Key of what is told to the first execution of a run that has come from elsewhere."""
DOCUMENT_BYTES = 1024 * 1024
"""Of a run's documents: a server refuses a memo of more than 2 MiB, and ends the run."""
ANSWER_BYTES = 64 * 1024
"""Of an answer that travels; a larger one stays on the machine that has it."""
ERROR_CHARS, SAID_CHARS = 16 * 1024, 1000
UPDATE = "update sequencer on this machine"
_STAYS = frozenset(
    {"run_id", "run_name", "workflow_name", "workflow_digest", "params", "has_definition"}
)
_WORKED_OUT = frozenset({"schema_version", "iteration", "journal_offset"})


def owner_of(run_id: str) -> Owner:
    """Return who holds the claims of the run *run_id*: nobody is known before one takes them."""
    return Owner(host=HOST, boot_id="", pid_ns="", pid=0, pid_start=0, nonce=run_id)


def documents_in(memo: Mapping[str, Any]) -> dict[str, Any]:
    """Return the documents of the run with this *memo*."""
    return {key: one for key, one in memo.items() if key not in _OWN_KEYS}


def sizes_of(documents: Mapping[str, str | None]) -> dict[str, int]:
    """Return how many bytes each of *documents* has in a memo."""
    return {name: len(json.dumps(text)) for name, text in documents.items() if text is not None}


def ensure_fitting(sizes: Mapping[str, int]) -> None:
    """Return if a server keeps the documents of one run, which have these *sizes*.

    Raises:
        StorageFailed: they are too large.
    """
    if (size := sum(sizes.values())) > DOCUMENT_BYTES:
        raise StorageFailed(
            f"the run's documents have {size} bytes; a Temporal server keeps at most "
            f"{DOCUMENT_BYTES} for one run",
            hint="keep it in files or git; 'sequencer sync --to file' moves a run that has started",
        )


def packed(head: Head) -> dict[str, dict[str, Any]]:
    """Return *head* in two parts: what stays in a run, and what changes."""
    whole = head.model_dump(mode="json", exclude_defaults=True)
    stays = {key: value for key, value in whole.items() if key in _STAYS}
    changes = {key: one for key, one in whole.items() if key not in _STAYS | _WORKED_OUT}
    if head.iteration != head.step_index + 1:
        changes["iteration"] = head.iteration
    if head.schema_version != FIRST_SCHEMA:
        changes["schema_version"] = head.schema_version
    if head.claims:
        changes["claims"] = [_packed_claim(one, head) for one in head.claims]
    return {RUN: stays, HEAD: changes}


def _packed_claim(claim: Claim, head: Head) -> dict[str, Any]:
    data = claim.model_dump(mode="json", exclude_defaults=True)
    known = {"owner": owner_of(head.run_id), "step_index": head.step_index}
    known |= {"step": head.expected_step, "claimed_at": head.last_update}
    return {
        key: one
        for key, one in data.items()
        if key not in known or getattr(claim, key) != known[key]
    }


def head_of(memo: Mapping[str, Any]) -> Head:
    """Return the head that `packed` was given, from the *memo* that has its parts.

    Raises:
        NewerSchema: a newer release has written it.
    """
    stays, changes = memo[RUN], memo[HEAD]
    if (version := changes.get("schema_version", FIRST_SCHEMA)) > SCHEMA_VERSION:
        message = f"schema_version {version} is newer than {SCHEMA_VERSION}"
        raise NewerSchema(message, where=stays["run_id"], hint=UPDATE)
    index, run_id = changes.get("step_index", 0), stays["run_id"]
    known = {
        "owner": owner_of(run_id),
        "step_index": index,
        "step": changes["expected_step"],
        "claimed_at": changes["last_update"],
    }
    claims = [{**known, **one} for one in changes.get("claims", ())]
    return Head.model_validate({"iteration": index + 1, **stays, **changes, "claims": claims})


def packed_fact(fact: Fact, record: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return *fact* as plain data; of an outcome only what *record* of the attempt has not."""
    data: dict[str, Any] = {"event": str(fact.event), "step": fact.step}
    data |= {"step_index": fact.step_index, "token": fact.token, "attempt": fact.attempt}
    if fact.outcome is not None:
        whole, own = dict(fact.outcome), record or {}
        is_more = record is not None and own.items() <= whole.items()
        data["outcome"] = {k: v for k, v in whole.items() if k not in own} if is_more else whole
        if is_more:
            data["told"] = True
    return data


def fact_of(data: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what `packed_fact` was given, as ``history --json`` prints it.

    *records* are those of attempts, by their tokens.
    """
    outcome = data.get("outcome")
    if data.get("told"):
        outcome = {**records.get(data["token"], {}), **outcome} if outcome else None
        outcome = outcome or dict(records.get(data["token"], {}))
    names = ("event", "step", "step_index", "token", "attempt")
    return {**{name: data[name] for name in names}, "outcome": outcome}


# --- a workflow --------------------------------------------------------------------


def plain_workflow(workflow: Workflow) -> dict[str, Any]:
    """Return *workflow* as `Workflow.model_validate` takes it, an output's schema included."""
    return workflow.model_dump(mode="json", exclude_defaults=True, by_alias=True)


# --- errors ------------------------------------------------------------------------


def packed_error(error: BaseException) -> dict[str, Any]:
    """Return the facts of *error*."""
    if not isinstance(error, SequencerError):
        return {"type": "", "message": f"{type(error).__name__}: {error}"}
    found = {"type": type(error).__name__, "message": error.message}
    more = {"where": error.where, "hint": error.hint}
    return found | {key: value for key, value in more.items() if value is not None}


def error_of(facts: Mapping[str, Any]) -> Exception:
    """Return the error with these *facts*, of its own class; a bug is one here too."""
    kind = getattr(errors, facts["type"] or "-", None)
    if not (isinstance(kind, type) and issubclass(kind, SequencerError)):
        return RuntimeError(facts["message"])
    made = kind.__new__(kind)
    SequencerError.__init__(
        made, facts["message"], where=facts.get("where"), hint=facts.get("hint")
    )
    return made


# --- an attempt --------------------------------------------------------------------


class Ticket(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an attempt is told; all else it finds with the run.

    Who does not know all of it makes no attempt.
    """

    token: int
    cost_usd: float | None = None
    timeout_s: float | None = None
    has_code: bool = False
    """The run's code moves through git, so that it can be made in a clone only."""
    merge: dict[str, Any] | None = None
    """The work of an attempt that has ended, to be merged with what was accepted meanwhile."""


class AttemptReport(Struct, frozen=True, omit_defaults=True):
    """How an attempt has ended, as its worker tells it."""

    record: dict[str, Any]
    """For the journal; most of the outcome is in it."""
    ending: dict[str, Any] | None = None
    """Of a line's."""
    output: str | None = None
    """Where the record does not have it."""
    said: str | None = None
    """Of an output that is too large to travel, what may pick the next node."""
    error: str | None = None
    """As `output`."""
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
    """Of its step, which may have it from the project's defaults."""
    reference: str | None = None
    """What its output is called, where a graph keeps it."""
    postponed: str | None = None
    raised: dict[str, Any] | None = None
    """What was raised instead of a result; it ends the invocation."""
    left: str | None = None
    """Who made the attempt, where that process is to end."""


def report_of(
    ended: AttemptResult, error: BaseException | None, left: str | None
) -> dict[str, Any]:
    """Return the report of *ended*, of whose attempt *error* was raised."""
    outcome, ending = ended.outcome, ended.ending
    record, step = dict(ended.record), ended.step
    output = None if "output" in record else _fitting(outcome.output)
    error_text = None if outcome.error == record.get("error") else outcome.error
    report = AttemptReport(
        record,
        ending=None if ending is None else _packed_ending(ending),
        output=output,
        said=None if output or "output" in record else _said(outcome.output),
        error=None if error_text is None else error_text[:ERROR_CHARS],
        structured=outcome.structured if _fitting(str(outcome.structured)) else None,
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
        raised=None if error is None else packed_error(error),
        left=left if outcome.status is OutcomeStatus.INTERRUPTED else None,
    )
    found: dict[str, Any] = to_builtins(report)
    return found


def _said(output: str) -> str | None:
    """Return a short text that picks the same way as *output*."""
    fitting = [one for one in candidates(output) if one and len(one) <= SAID_CHARS]
    if not fitting or decision_in(output) is None:
        return next(iter(fitting), None)
    # The object comes first, and then the last line.
    return "\n".join((json.dumps({"decision": fitting[0]}), *fitting[1:2]))


def _fitting(text: str) -> str | None:
    """Return *text* if it may travel; an empty one need not."""
    is_fitting = text and len(text.encode("utf-8", "replace")) <= ANSWER_BYTES
    return text if is_fitting else None


def _packed_ending(ending: Continuation) -> dict[str, Any]:
    to = None if ending.following is None else ending.following.step_index
    more = {"to": to, "gate": ending.has_gate, "done": ending.is_done, "error": ending.error}
    said = {key: value for key, value in more.items() if value is not None and value is not False}
    return {"kind": str(ending.kind), **said}


def amended(report: dict[str, Any], merged: dict[str, Any]) -> dict[str, Any]:
    """Return the *report* of an attempt whose work was *merged* afterwards."""
    record = {**report["record"], **merged}
    return {**report, "record": {key: one for key, one in record.items() if one is not None}}


def ended_of(
    report: AttemptReport, claim: Claim, here: StepRef, step: Step, workflow: Workflow
) -> AttemptResult:
    """Return the end that *report* tells of, of the attempt of *claim* at *step*, *here*."""
    record, ending, decision = report.record, None, None
    if report.retry is not None:
        step = step.replace(retry=Retry.model_validate(report.retry))
    if (told := report.ending) is not None:
        to = told.get("to")
        ending = Continuation(
            ContinuationKind(told["kind"]),
            None if to is None else place(workflow, to),
            has_gate=told.get("gate", False),
            is_done=told.get("done", False),
            error=told.get("error"),
        )
    if "decision" in record:
        decision = convert(record["decision"], Decision)
    return AttemptResult(
        _outcome_of(report, record),
        step,
        here,
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


def _outcome_of(report: AttemptReport, record: Mapping[str, Any]) -> Outcome:
    fault = report.session_fault
    return Outcome(
        status=OutcomeStatus(record["status"]),
        output=report.output or record.get("output") or report.said or "",
        structured=report.structured,
        error=report.error or record.get("error"),
        usage=used(record.get("usage", {})),
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
        evidence=evidence_of(record),
        missing=record.get("missing"),
    )


def own_facts(
    facts: Sequence[Fact], told: tuple[int, Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Return *facts* as plain data; *told* is an attempt's token and what is known of it."""
    token, record = told or (0, None)
    return [packed_fact(one, record if one.token == token else None) for one in facts]


# --- what others ask of a run ------------------------------------------------------
#
# Everybody with a key of the server's namespace can ask. A handler that raises stops its run until
# somebody mends it, so what it could raise about is refused before.

LONGEST_TTL_S = 86_400.0
_PERMIT_ID = re.compile(r"[0-9a-f]{32}")


def worker_name(who: str) -> str:
    """Return what people read of the `identity` *who*.

    >>> worker_name("12@there#m/b/n/7"), worker_name("12@there")
    ('12@there', '12@there')
    """
    return who.partition("#")[0]


_QUEUE = re.compile(r"(?P<project>[^@]+)@(?P<edition>[0-9]{1,6})(?:/(?P<place>.+))?", re.DOTALL)


def is_permit_id(value: object) -> bool:
    """Return whether *value* may be the id of a permit."""
    return isinstance(value, str) and _PERMIT_ID.fullmatch(value) is not None


def follows(queue: object, own: str) -> bool:
    """Return whether *queue* is of the same project and place as *own*, and of no older edition.

    >>> follows("seq/shop@7/gpu", "seq/shop@6/gpu"), follows("x", "seq/shop@6")
    (True, False)
    >>> follows("seq/other@7", "seq/shop@6"), follows("seq/shop@5", "seq/shop@6")
    (False, False)
    """
    found = _QUEUE.fullmatch(queue) if isinstance(queue, str) else None
    known = _QUEUE.fullmatch(own)
    if found is None or known is None:
        return False
    is_here = found["project"] == known["project"] and found["place"] == known["place"]
    return is_here and int(found["edition"]) >= int(known["edition"])


def ensure_permit(data: Mapping[str, Any], own: str) -> None:
    """Return if a permit in *data* names what can be: ids, times, and a queue of *own*'s project.

    Raises:
        ValueError: it does not.
    """
    if not is_permit_id(data["id"]) or not isinstance(data["by"], str) or "kept" in data:
        raise ValueError("it is not a permit that a process issues")
    ttl_s, places = data["ttl_s"], data.get("places", 1)
    if type(ttl_s) not in (int, float) or not 0 < ttl_s <= LONGEST_TTL_S:
        raise ValueError(f"ttl_s is {ttl_s!r}")
    if type(places) is not int or places < 1:
        raise ValueError(f"places is {places!r}")
    queue, project = data.get("queue"), own.partition("@")[0]
    if queue is not None and not (isinstance(queue, str) and queue.startswith(f"{project}@")):
        raise ValueError("its queue is another project's")


def ensure_change(change: Mapping[str, Any]) -> None:
    """Return if *change* has facts, and texts as documents and outputs.

    Raises:
        ValueError: it does not.
    """
    facts = change[FACTS]
    if not isinstance(facts, list) or not all(isinstance(one, dict) for one in facts):
        raise ValueError("its facts are not a list of objects")
    for fact in facts:
        fact_of(fact, {})
    outputs, documents = change.get("outputs", {}), change.get("documents", {})
    if not all(isinstance(one, str) for one in outputs.values()):
        raise ValueError("an output is not a text")
    if not all(isinstance(one, str | None) for one in documents.values()):
        raise ValueError("a document is not a text")
