"""The journal's record of an attempt, and the file for an output that is too large for it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sequencer.engine.attempt import Attempt, PreparedStep
from sequencer.engine.stagnation import describe_stagnation
from sequencer.errors import SequencerError, StorageFailed, is_fault_of_attempt
from sequencer.executors.protocol import Executor
from sequencer.model.answers import MARKS, find_decision, read_decision, redact_json
from sequencer.model.evidence import Evidence
from sequencer.model.graph.choices import (
    find_choice_nodes,
    find_required_labels,
    forward_label,
    has_choice_ahead,
    is_unmatched,
    shorten,
)
from sequencer.model.head import Head, Session, Work
from sequencer.model.kind import STAGNATED, AttemptResult
from sequencer.model.limits import find_renewal_reason
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.order import current_round
from sequencer.model.step import Output, Step
from sequencer.model.workflow import Workflow, require_graph
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.workflows.prompts import parse_loose_json
from sequencer.workflows.verdicts import check_schema, read_verdict, with_second_attempt

INLINE_BYTES = 4 * 1024
"""A larger output goes to the results folder instead of the journal record."""


def draw_jitter(ended: AttemptResult) -> float:
    """Return a random number below 1 for the wait after *ended*; 0 if it is accepted.

    Importing the module `random` would slow down each tick.
    """
    return 0.0 if ended.outcome.is_accepted else int.from_bytes(os.urandom(4), "big") / 2**32


def format_log_path(path: str | None, project: Path) -> str | None:
    """Return the path of a step log for a record, relative to *project* if it is inside."""
    return None if path is None else path.removeprefix(f"{project}{os.sep}")


def journal_record(
    outcome: Outcome, agent: str, log: str | None, output: dict[str, Any]
) -> dict[str, Any]:
    """Return the journal's record of *outcome*; *output* is inline or a reference."""
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
        "session": _format_session(outcome) if outcome.session_id else None,
        "quota": None if outcome.quota is None else outcome.quota.model_dump(),
        "evidence": None if outcome.evidence is None else format_evidence(outcome.evidence),
        "missing": outcome.missing,
    }
    return {key: value for key, value in record.items() if value is not None}


def _format_session(outcome: Outcome) -> str | None:
    """Return the client's id of the conversation, without the notes that its executor has added."""
    return (outcome.session_mark or "").partition(";")[0] or None


def format_evidence(evidence: Evidence) -> dict[str, Any] | None:
    """Return the fields of *evidence* that differ from the defaults; None: there are none."""
    return evidence.model_dump(mode="json", exclude_defaults=True) or None


def make_broken_outcome(
    error: BaseException, usage: Usage, redact: Callable[[str], str]
) -> Outcome:
    """Return the outcome of an attempt that raised *error* after it had used *usage*.

    A bug is a failure. A refusal, an interrupt, a failing disk and a machine without free
    processes or descriptors are not: the attempt was interrupted.
    """
    status = OutcomeStatus.FAILED if is_fault_of_attempt(error) else OutcomeStatus.INTERRUPTED
    return Outcome(status=status, error=redact(describe_error(error)), usage=usage.cap())


def describe_error(error: BaseException) -> str:
    """Return *error* as text for a record; a bug has the form of Python's ``repr``.

    >>> describe_error(KeyboardInterrupt()), describe_error(KeyError("x"))
    ('interrupted', "KeyError('x')")
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, SequencerError) else repr(error)


def make_extra_fields(ended: AttemptResult) -> dict[str, Any]:
    """Return the other fields of the record of *ended*: its start, model, note, a hook's decision.

    If the run pauses after it, the record says why.
    """
    step = ended.step
    fields = {"model": step.model, "began_at": ended.began_at, "note": ended.note}
    record: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    if (decision := ended.decision) is not None:
        fields = {"move": str(decision.move), "target": decision.target, "reason": decision.reason}
        record["decision"] = {key: value for key, value in fields.items() if value}
    if (
        ended.outcome.evidence is not None
        and (stagnation := describe_stagnation(ended)) is not None
    ):
        record[STAGNATED] = stagnation
    if step.max_cost_usd is not None and (
        overspending := describe_overspending(step, ended.outcome.usage)
    ):
        record["overspent"] = overspending
    return record


def describe_overspending(step: Step, usage: Usage) -> str | None:
    """Say how much an attempt at *step* overspent its limit; None: it did not.

    >>> describe_overspending(Step(name="a", max_cost_usd=1), Usage(cost_usd=1.5))
    '1.5000 USD, more than its max_cost_usd of 1'
    """
    limit_usd = step.max_cost_usd
    if limit_usd is None or usage.cost_usd <= limit_usd:
        return None
    return f"{usage.cost_usd:.4f} USD, more than its max_cost_usd of {limit_usd:g}"


def make_ended_record(
    ended: AttemptResult, log: str | None, output: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Return the journal's record of *ended*; *rounds* is the round in which it judged."""
    record = journal_record(ended.outcome, ended.agent, log, output)
    if ended.log is not None:
        record |= make_extra_fields(ended)
    verdict = ended.verdict
    if verdict is not None:
        record["verdict"] = {"pass": verdict.is_pass, "source": verdict.source, "round": rounds}
        if verdict.reason:
            record["verdict"]["reason"] = verdict.reason
    return record


def describe_verdict(workflow: Workflow, ended: AttemptResult, head: Head) -> str:
    """Return the verdict of *ended*, its round and its reason as text; empty: it does not judge.

    *head* is the head of its claim. A graph keeps the rounds of its judges elsewhere.
    """
    verdict, validation = ended.verdict, ended.step.validation
    if verdict is None:
        return ""
    limit_text = "" if validation is None else f" of {validation.max_attempts}"
    answer = "yes" if verdict.is_pass else "no"
    answer += "" if workflow.nodes else f" (round {current_round(head)}{limit_text})"
    reason = " ".join(verdict.reason.split())
    return f"{answer}: {shorten(reason)}" if reason else answer


def make_node_record(
    attempt: Attempt, result: AttemptResult, work: Work | None, project: Path
) -> dict[str, Any]:
    """Return the journal's facts about *attempt* at a node, which has ended with *result*.

    *work* is the code that moves with the record, if the node is accepted.
    """
    outcome, leftovers, fields = result.outcome, attempt.leftovers, dict[str, Any]()
    size = len(outcome.output.encode("utf-8", "replace"))
    if outcome.output and size <= INLINE_BYTES:
        fields["output"] = outcome.output
    if isinstance(attempt.reference, str):
        fields["output_file"] = f"results/{attempt.reference}/output.txt"
        fields["output_bytes"] = size
    if work is not None and outcome.is_accepted:
        fields["work"] = work.model_dump()
    log = format_log_path(result.log, project)
    record = journal_record(outcome, result.agent, log, fields) | make_extra_fields(result)
    if leftovers is not None and leftovers.journal_fields:
        record["left"] = dict(leftovers.journal_fields)
    if leftovers is not None and leftovers.notices:
        record["notices"] = [text[:1000] for text in leftovers.notices[:20]]
    return record


def keep_large_output(outcome: Outcome, folder: Path) -> dict[str, Any]:
    """Return the output for the record, and save a large one in *folder*.

    The folder is removed if it is not needed.

    Raises:
        StorageFailed: the output can't be saved.
    """
    data = outcome.output.encode("utf-8", "replace")
    if len(data) <= INLINE_BYTES:
        _remove(folder)
        return {"output": outcome.output} if outcome.output else {}
    try:
        results.write_output(folder, data)
    except OSError as error:
        raise StorageFailed(
            f"the step's output can't be saved: {error.strerror}", where=str(folder)
        ) from error
    reference = {"output_file": f"results/{folder.name}/output.txt"}
    return {**reference, "output_bytes": len(data)}


def _remove(folder: Path) -> None:
    """Remove an attempt's folder, whose content has been read into the outcome."""
    if not os.access(folder, os.F_OK):
        return  # the usual case: nothing was written there
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
"""The answer of a step that judges, for clients that take a schema."""


def judge_answer(workflow: Workflow, ended: AttemptResult, *, is_command: bool) -> AttemptResult:
    """Return *ended* with the decision that its answer makes in a run of *workflow*.

    A "no" is a failure in the log and the journal, and the loop decides what follows. A missing
    decision is a plain failure, after which the agent is asked at least once more: there was no
    "no", so there is nothing to fix.
    """
    step = ended.step
    if step.validation is not None and ended.place.stage != "fix":
        return _with_verdict(ended, _VERDICT_FORM, is_command=is_command)
    if not workflow.nodes or not ended.outcome.is_accepted:
        return ended
    graph = workflow.whole_graph
    if next(find_choice_nodes(graph, step.name), None) is None:
        return ended
    outcome = _with_decision(ended.outcome)
    if not is_unmatched(graph, step.name, outcome.output):
        return replace(ended, outcome=outcome)
    error = f"no matching branch for {shorten(outcome.output)!r}"
    return _fail_unanswered(ended, f"{error}; {describe_wanted_form(workflow, step)}")


def _with_verdict(result: AttemptResult, wanted_form: str, *, is_command: bool) -> AttemptResult:
    outcome = result.outcome
    has_ended = outcome.exit_code is not None and outcome.exit_code >= 0
    if not outcome.is_accepted and not (is_command and has_ended):
        return result
    verdict = read_verdict(outcome, is_command=is_command)
    if verdict.source == "none":
        return _fail_unanswered(result, f"{verdict.reason}; {wanted_form}")
    if not verdict.is_pass:
        error = f"the answer is no: {verdict.reason}"
        outcome = outcome.replace(status=OutcomeStatus.FAILED, error=error)
    return replace(result, outcome=outcome, verdict=verdict)


def _fail_unanswered(result: AttemptResult, error: str) -> AttemptResult:
    """Return *result* as a failure with at least one more try."""
    return replace(
        result,
        step=with_second_attempt(result.step),
        outcome=result.outcome.replace(status=OutcomeStatus.FAILED, error=error),
    )


def _with_decision(outcome: Outcome) -> Outcome:
    """Return *outcome* with its decision at the end of the text.

    Some clients report the decision as a structured value, next to the text.
    """
    if read_decision(outcome.structured) is None or find_decision(outcome.output) is not None:
        return outcome
    decision = json.dumps(outcome.structured, ensure_ascii=False)
    return outcome.replace(output=f"{outcome.output.rstrip()}\n\n{decision}")


def describe_wanted_form(workflow: Workflow, step: Step, stage: str = "step") -> str | None:
    """Say how the answer of *step* has to end to decide; None: it decides nothing.

    The text is for prompts and for error messages.
    """
    if step.validation is not None and stage != "fix":
        return _VERDICT_FORM
    labels = find_required_labels(workflow.whole_graph, step.name) if workflow.nodes else ()
    if not labels:
        return None
    labels_text = ", ".join(f"`{label}`" for label in labels)
    example = json.dumps({"decision": labels[0]}, ensure_ascii=False)
    return (
        f"the last line has to be one of {labels_text} and nothing else, "
        f"or the answer ends with JSON such as {example}"
    )


def find_forward_label(workflow: Workflow, step: Step) -> str | None:
    """Return the label of the edge on which *step* goes forward; None: it picks no edge."""
    return forward_label(workflow.whole_graph, step.name) if workflow.nodes else None


_VERDICT_FORM = (
    'the answer has to end with the JSON object {"pass": true, "reason": "…"}, '
    'or with {"pass": false, "reason": "…"}'
)


def is_deciding_step(workflow: Workflow, step: Step, stage: str = "step") -> bool:
    """Return whether the answer of *step* decides how a run of *workflow* continues.

    This is so for a step that judges, and for a node whose output picks one of several edges.
    """
    if step.validation is not None and stage != "fix":
        return True
    if not workflow.nodes:
        return False
    graph = require_graph(workflow)
    return step.name in graph.by_id and has_choice_ahead(graph, step.name)


def adapt_to_executor(prepared: PreparedStep) -> tuple[Step, str, str | None]:
    """Return the step, the prompt and the added system prompt as the executor gets them."""
    step, prompt, system_prompt = prepared.step, prepared.prompt, prepared.append_system_prompt
    if step.validation is not None and step.output is None and prepared.place.stage == "step":
        step = step.replace(output=VERDICT_OUTPUT)
    if system_prompt and "append_system_prompt" not in prepared.executor.supported_fields:
        # A client without such an option gets it at the start of the prompt.
        prompt, system_prompt = f"{system_prompt}\n\n---\n\n{prompt}", None
    return step, prompt, system_prompt


def drop_comment_tools(step: Step, executor: Executor, comment_tools: Collection[str]) -> Step:
    """Return *step* without the tools that could post comments, if it has ``no_comment``.

    An agent whose tools can't be removed one by one keeps them.
    """
    has_tools = not (step.single_turn or step.disallow_all_tools)
    if not (step.no_comment and has_tools and "disallowed_tools" in executor.supported_fields):
        return step
    disallowed_tools = tuple(dict.fromkeys((*(step.disallowed_tools or ()), *comment_tools)))
    return step.replace(disallowed_tools=disallowed_tools or None)


def check_answer(step: Step, outcome: Outcome) -> Outcome:
    """Return *outcome*, failed if its answer does not match the step's schema."""
    schema = step.output.json_schema if step.output is not None else None
    if schema is None or not outcome.is_accepted:
        return outcome
    try:
        value = (
            outcome.structured
            if outcome.structured is not None
            else parse_loose_json(outcome.output)
        )
        problem = check_schema(schema, value)
    except KeyError:
        problem = "it is not JSON"
    if problem is None:
        return outcome
    error = f"the answer does not match the step's schema: {problem}"
    return outcome.replace(status=OutcomeStatus.FAILED, error=error)


def drop_secret_mark(mark: str, redact: Callable[[str], str]) -> str | None:
    """Return *mark*, a client's id of a conversation; None if it contains a secret.

    Otherwise an agent that imitates its client's output could bring a secret into the head and
    the journal.
    """
    return mark if redact(mark) == mark else None


def redact_outcome(outcome: Outcome, redact: Callable[[str], str], **more: Any) -> Outcome:
    """Return *outcome* without secrets, so that it can be kept and shown; *more* sets fields."""
    session, value = outcome.session_id, outcome.structured
    return outcome.replace(
        **more,
        output=redact(outcome.output),
        structured=None if value is None else redact_json(value, redact),
        error=redact(outcome.error) if outcome.error else None,
        denials=tuple(map(redact, outcome.denials)),
        session_id=None if session is None else drop_secret_mark(session, redact),
    )


def apply_completion(step: Step, outcome: Outcome) -> Outcome:
    r"""Return *outcome*, complete if it is ok and its output has the step's mark.

    The mark must be alone on a line, or be an item of a list: an agent that quotes its prompt in
    a sentence has not finished anything. White space inside the mark and Markdown around it are
    ignored, so the mark may span several lines.

    >>> step = Step(name="main", complete_when="ALL DONE")
    >>> apply_completion(step, Outcome(status="ok", output="Tests pass.\n - **ALL DONE**\n")).status
    <OutcomeStatus.COMPLETE: 'complete'>
    >>> apply_completion(step, Outcome(status="ok", output="I am not ALL DONE yet")).status
    <OutcomeStatus.OK: 'ok'>
    """
    if not isinstance(step.complete_when, str) or outcome.status is not OutcomeStatus.OK:
        return outcome
    if _is_alone_on_line(step.complete_when.strip(), outcome.output):
        return outcome.replace(status=OutcomeStatus.COMPLETE)
    return outcome


def mark_budget_used_up(outcome: Outcome, step: Step, left_usd: float | None) -> Outcome:
    """Return *outcome* of a *step* that used up its budget.

    It is not a failure if the run or the invocation, not the step, set the budget. *left_usd* is
    what their caps left for the step; None: they have no caps.
    """
    step_usd = step.max_cost_usd
    if left_usd is None or (step_usd is not None and step_usd <= left_usd):
        return outcome
    reason = f"a cap on costs left {left_usd:.4f} USD for it, and that is used up"
    error = f"{(outcome.error or '').partition(chr(10))[0]}\n{reason}"
    return outcome.replace(status=OutcomeStatus.INTERRUPTED, error=error)


def near_miss(step: Step, outcome: Outcome) -> str | None:
    """Say why *outcome* is not complete if its output has the step's mark somewhere else."""
    mark = step.complete_when
    if not isinstance(mark, str) or outcome.status is not OutcomeStatus.OK:
        return None
    return (
        NEAR_MISS
        if mark.strip() and _remove_spaces(mark) in _remove_spaces(outcome.output)
        else None
    )


def make_history_note(final: PreparedStep, outcome: Outcome, attempt: Attempt) -> str | None:
    """Return the note for the history about the step *final*; a near miss also goes to the log."""
    if (near_miss_text := near_miss(final.step, outcome)) is not None:
        # The agent's answer may not end with a line break.
        attempt.write_notice(near_miss_text, before="\n")
    return "; ".join(filter(None, (final.note, near_miss_text))) or None


NEAR_MISS = "the answer has the text of complete_when, but not alone on a line"
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+")
"""The start of an item. A quotation (`>`), a heading and struck-out text mean something else."""


def _remove_spaces(text: str) -> str:
    return "".join(text.split())


def _is_alone_on_line(mark: str, output: str) -> bool:
    wanted_text = _remove_spaces(_ITEM.sub("", mark, count=1)).strip(MARKS)
    lines = [line for line in output.splitlines() if line.strip()]
    if not wanted_text:
        return bool(mark) and any(line.strip() == mark for line in lines)
    for index, line in enumerate(lines):
        text, next_index = _remove_spaces(_ITEM.sub("", line, count=1)).lstrip(MARKS), index + 1
        # The mark may span several lines.
        while text != wanted_text and wanted_text.startswith(text) and next_index < len(lines):
            text, next_index = text + _remove_spaces(lines[next_index]), next_index + 1
        if text.rstrip(MARKS) == wanted_text:
            return True
    return False


def describe_route(prepared: PreparedStep, chosen: PreparedStep) -> str:
    """Say which prompt runs after the router, and why."""
    prompt, planned_prompt = chosen.step.prompt_name, prepared.step.prompt_name
    if chosen.note is not None:
        return f"{chosen.note}; {prompt} runs, as the workflow says"
    if prompt == planned_prompt:
        return f"{prompt}, as the workflow says"
    return f"{prompt} instead of {planned_prompt}"


def find_continued_session(attempt: Attempt) -> Session | None:
    """Return the conversation that *attempt* continues; None: a new one starts.

    If the old one may not be continued, the log says why.
    """
    session = attempt.head.session
    if session is None or session.executor != attempt.prepared.agent:
        return None
    reason = find_renewal_reason(session, attempt.prepared.step, datetime.now(UTC))
    if reason is None:
        return session
    attempt.write_notice(f"a new conversation starts: {reason}")
    return None
