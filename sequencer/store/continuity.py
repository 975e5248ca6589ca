"""Find records that do not continue the record before them: git merged two branches, or an edit.

Each record says what it was built on, so a file that git merged from two branches shows it. Pure.

Not promised: that every merge is found. Two branches in which nothing was measured look the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct, ValidationError, convert

from sequencer.history.facts import RecordedFact, StartKind, list_facts, read_facts
from sequencer.store.journal import Scan

MARKS = (b"<<<<<<<", b"=======", b">>>>>>>")
"""The conflict markers of git."""
_USED = ("cost_usd", "seconds")
_ROUNDING = 5e-6
"""A head rounds to millionths, so sums may differ by this much."""


def find_misfits(found: Scan, data: bytes) -> tuple[tuple[int, str], ...]:
    """Return (offset, evidence) for each place in *data* where the journal does not continue."""
    marks = [
        (offset, find_conflict_marker(data[offset : offset + 8])) for offset, _ in found.skipped
    ]
    breaks = [
        (record.offset, find_misfit(previous_record.data["head"], record.data))
        for previous_record, record in pairwise(found.winners)
        if record.revision == previous_record.revision + 1
    ]
    return tuple(
        sorted((offset, reason) for offset, reason in (*marks, *breaks) if reason is not None)
    )


def find_conflict_marker(line: bytes) -> str | None:
    """Return the problem if *line* is a conflict marker of git; None: it is not."""
    is_mark = line.startswith(MARKS)
    return f"git left {line[:7].decode()!r} from a merge" if is_mark else None


def find_misfit(head: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """Return why *record* was not built on *head*, the one before it; None: it may have been."""
    facts = [*read_facts(list_facts(dict(record)))]
    problem = _find_type_problem(record["head"], facts)
    if problem is not None or _find_type_problem(head, ()) is not None:
        return problem
    if any(fact.meaning.sets_fields for fact in facts):
        return None
    return (
        _find_run_mismatch(head, record["head"])
        or _find_gate_mismatch(head, facts[0])
        or _find_step_mismatch(head, facts[0])
        or _find_token_mismatch(head, facts)
        or _find_late_charge_mismatch(head, record["head"], facts)
        or _find_usage_mismatch(head, record, facts)
    )


class _Claim(Struct):
    token: int | None = None
    step_index: int | None = None


class _Used(Struct):
    cost_usd: float = 0
    seconds: float = 0


class _Head(Struct):
    """The compared fields of a head, with their types; nothing else validates old heads."""

    step_index: int | None = None
    token: int | None = None
    claims: Sequence[_Claim] | None = None
    usage: _Used | None = None
    gate: Mapping[str, Any] | None = None


def _find_type_problem(head: Mapping[str, Any], facts: Sequence[RecordedFact]) -> str | None:
    """Return the problem if *head* or one of *facts* has a value of the wrong type."""
    try:
        convert(head, _Head)
    except ValidationError as error:
        return f"its head has a value of the wrong type: {str(error).lower()}"
    return next((fact.problem for fact in facts if fact.problem is not None), None)


def _find_run_mismatch(head: Mapping[str, Any], next_head: Mapping[str, Any]) -> str | None:
    """Return the problem if *next_head* has another run id than *head*."""
    old_id, new_id = head.get("run_id"), next_head.get("run_id")
    if old_id is None or new_id is None or old_id == new_id:
        return None
    return f"it is from run {new_id}, but the record before it is from run {old_id}"


def _find_gate_mismatch(head: Mapping[str, Any], fact: RecordedFact) -> str | None:
    """Return the problem if *fact* decides at a gate other than the one where the run waits."""
    if not fact.meaning.decides_gate:
        return None
    gate = head.get("gate")
    if not isinstance(gate, dict) or gate.get("decision") is not None:
        return f"it decides at {fact.step!r}, but in the record before it no gate waits"
    # The gate keeps the step_index of the step that asks; the run is at the step after it.
    index, token = gate.get("step_index"), gate.get("token")
    if (fact.step_index, fact.token) == (index, token):
        return None
    return (
        f"it decides at the gate of step_index {fact.step_index}, token {fact.token}, but in the "
        f"record before it the gate of step_index {index}, token {token}, waits"
    )


def _find_step_mismatch(head: Mapping[str, Any], fact: RecordedFact) -> str | None:
    """Return the problem if *fact* is about a step other than the run's or its claim's."""
    index = _find_expected_index(head, fact)
    if fact.step_index == index:
        return None
    return (
        f"it is about step_index {fact.step_index}, but the record before it has the run at {index}"
    )


def _find_expected_index(head: Mapping[str, Any], fact: RecordedFact) -> Any:
    """Return the step_index that *fact* must have to continue the run of *head*."""
    if fact.meaning.decides_gate or fact.meaning.is_late_charge:
        # It is about a step that the run has left.
        return fact.step_index
    if head.get("flow") is None or fact.meaning.starts is StartKind.ATTEMPT:
        return head.get("step_index")
    claims = head.get("claims")
    for claim in claims if isinstance(claims, list) else ():
        # Nodes run in parallel: each claim keeps the step_index at which it was granted.
        if isinstance(claim, dict) and claim.get("token") == fact.token:
            return claim.get("step_index")
    return fact.step_index


def _find_token_mismatch(head: Mapping[str, Any], facts: Sequence[RecordedFact]) -> str | None:
    """Return the problem if a token is granted out of order, or ended without a claim."""
    newest_token, claims = head.get("token"), head.get("claims")
    if not isinstance(newest_token, int) or not isinstance(claims, list):
        return None
    is_of_graph = head.get("flow") is not None
    claim_tokens = {claim.get("token") for claim in claims if isinstance(claim, dict)}
    for fact in facts:
        token, meaning = fact.token, fact.meaning
        if is_of_graph and meaning.takes_token:
            newest_token += 1
        elif meaning.starts in (StartKind.ATTEMPT, StartKind.QUESTION):
            newest_token += 1
            claim_tokens.add(newest_token)
            if token != newest_token:
                return f"it grants token {token}, but the next token is {newest_token}"
        elif meaning.is_late_charge:
            if token > newest_token:
                return (
                    f"it counts what token {token} has used, but the newest token is {newest_token}"
                )
        elif is_of_graph and not fact.attempt:
            # A node for a person, or a node without work: it ends without a claim.
            continue
        elif meaning.by_holder and token not in claim_tokens:
            return f"it ends token {token}, which has no claim in the record before it"
    return None


def _find_late_charge_mismatch(
    head: Mapping[str, Any], next_head: Mapping[str, Any], facts: Sequence[RecordedFact]
) -> str | None:
    """Return the problem if *facts* only count what was used, but *next_head* has other changes."""
    if not all(fact.meaning.is_late_charge for fact in facts):
        return None
    tokens = {fact.token for fact in facts}
    for name in ("step_index", "token", "claims"):
        old_value, new_value = head.get(name), next_head.get(name)
        if name == "claims" and isinstance(old_value, list):
            # A holder whose claim was in the head after all has released it.
            old_value = [claim for claim in old_value if claim.get("token") not in tokens]
        if name in next_head and old_value != new_value:
            return f"it only counts what an attempt has used, but {name} changes, too"
    return None


def _find_usage_mismatch(
    head: Mapping[str, Any], record: Mapping[str, Any], facts: Sequence[RecordedFact]
) -> str | None:
    """Return the problem if a usage counter grew by more or less than the facts of *record* say."""
    usages = [
        fact.details.get("usage") for fact in facts if fact.meaning.starts is not StartKind.ATTEMPT
    ]
    if not all(isinstance(usage, dict) for usage in usages):
        return None
    old_usage, new_usage = head.get("usage"), record["head"].get("usage")
    if not isinstance(old_usage, dict) or not isinstance(new_usage, dict):
        return None
    for name in _USED:
        growth = new_usage.get(name, 0) - old_usage.get(name, 0)
        reported_total = sum(usage.get(name, 0) for usage in usages if usage is not None)
        if abs(growth - reported_total) > _ROUNDING:
            return f"usage.{name} grew by {growth:g}, but its events used {reported_total:g}"
    return None
