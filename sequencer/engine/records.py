"""What the journal keeps of an attempt, and where an output goes that is too large for it."""

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
from sequencer.engine.stagnation import stagnated
from sequencer.errors import SequencerError, StorageFailed, failed_disk, out_of_resources
from sequencer.executors.protocol import Executor
from sequencer.model.answers import MARKS, decision_in, decision_of, redacted
from sequencer.model.evidence import Evidence
from sequencer.model.graph.choices import (
    forward_label,
    labels_of,
    own_choices,
    picks_a_way,
    picks_none,
    shortened,
)
from sequencer.model.head import Head, Session
from sequencer.model.kind import STAGNATED, AttemptResult
from sequencer.model.limits import worn_out
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.order import round_of
from sequencer.model.step import Output, Step
from sequencer.model.workflow import Workflow, graph_of
from sequencer.store import folder as folders
from sequencer.store import results
from sequencer.workflows.prompts import parsed
from sequencer.workflows.verdicts import asked_again, check_schema, verdict_of

ID_CHARS = 200
"""Longest id of a conversation; it comes from a client, whom nobody trusts."""
INLINE_BYTES = 4 * 1024
"""A larger output goes to the results folder instead of the journal record."""


def jitter_of(ended: AttemptResult) -> float:
    """Return a random number below 1 for the wait after *ended*; one that counts waits for nothing.

    The module `random` would cost each tick its import.
    """
    return 0.0 if ended.outcome.is_accepted else int.from_bytes(os.urandom(4), "big") / 2**32


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
        "missing": outcome.missing,
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

    A bug is a failure. A refusal, an interrupt, a disk that fails and a machine that has no
    more processes or descriptors are none.
    """
    is_meant = isinstance(error, SequencerError) or not isinstance(error, Exception)
    is_bug = not is_meant and out_of_resources(error) is None and failed_disk(error) is None
    status = OutcomeStatus.FAILED if is_bug else OutcomeStatus.INTERRUPTED
    return Outcome(status=status, error=redact(in_short(error)), usage=usage)


def in_short(error: BaseException) -> str:
    """Return *error* in the words of a record: a bug is named as Python does.

    >>> in_short(KeyboardInterrupt()), in_short(KeyError("x"))
    ('interrupted', "KeyError('x')")
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, SequencerError) else repr(error)


def circumstances(ended: AttemptResult) -> dict[str, Any]:
    """Return what else is known of *ended*: when it began, its model, its note, a hook's word.

    Where the run is to pause after it, the record says why.
    """
    step = ended.step
    known = {"model": step.model, "began_at": ended.began_at, "note": ended.note}
    found: dict[str, Any] = {key: value for key, value in known.items() if value is not None}
    if (decision := ended.decision) is not None:
        told = {"move": str(decision.move), "target": decision.target, "reason": decision.reason}
        found["decision"] = {key: value for key, value in told.items() if value}
    if ended.outcome.evidence is not None and (why := stagnated(ended)) is not None:
        found[STAGNATED] = why
    if step.max_cost_usd is not None and (over := overspent(step, ended.outcome.usage)):
        found["overspent"] = over
    return found


def overspent(step: Step, usage: Usage) -> str | None:
    """Return by how much an attempt at *step* has spent more than it may; None: it has not.

    >>> overspent(Step(name="a", max_cost_usd=1), Usage(cost_usd=1.5))
    '1.5000 USD, more than its max_cost_usd of 1'
    """
    most = step.max_cost_usd
    if most is None or usage.cost_usd <= most:
        return None
    return f"{usage.cost_usd:.4f} USD, more than its max_cost_usd of {most:g}"


def ended_record(
    ended: AttemptResult, log: str | None, output: dict[str, Any], rounds: int
) -> dict[str, Any]:
    """Return what the journal keeps of *ended*, which judged for the *rounds*-th time."""
    record = journal_record(ended.outcome, ended.agent, log, output)
    if ended.log is not None:
        record |= circumstances(ended)
    verdict = ended.verdict
    if verdict is not None:
        record["verdict"] = {"pass": verdict.is_pass, "source": verdict.source, "round": rounds}
        if verdict.reason:
            record["verdict"]["reason"] = verdict.reason
    return record


def verdict_words(workflow: Workflow, ended: AttemptResult, head: Head) -> str:
    """Return what *ended* has decided, in which round and why; empty: it does not judge.

    *head* is that of its claim. A graph keeps the rounds of its judges elsewhere.
    """
    verdict, validation = ended.verdict, ended.step.validation
    if verdict is None:
        return ""
    most = "" if validation is None else f" of {validation.max_attempts}"
    told = "yes" if verdict.is_pass else "no"
    told += "" if workflow.nodes else f" (round {round_of(head)}{most})"
    reason = " ".join(verdict.reason.split())
    return f"{told}: {shortened(reason)}" if reason else told


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


def judged(workflow: Workflow, ended: AttemptResult, *, is_command: bool) -> AttemptResult:
    """Return *ended* with what its answer decides in a run of *workflow*.

    A "no" reads as a failure in log and journal; what follows is the loop's to say. An answer
    that has to decide and does not is a plain failure, after which the agent is asked again at
    least once: nobody has said no, so that there is nothing to fix.
    """
    step = ended.step
    if step.validation is not None and ended.place.stage != "fix":
        return _with_verdict(ended, _VERDICT_FORM, is_command=is_command)
    if not workflow.nodes or not ended.outcome.is_accepted:
        return ended
    graph = workflow.whole_graph
    if next(own_choices(graph, step.name), None) is None:
        return ended
    outcome = _with_decision(ended.outcome)
    if not picks_none(graph, step.name, outcome.output):
        return replace(ended, outcome=outcome)
    error = f"no matching branch for {shortened(outcome.output)!r}"
    return _unanswered(ended, f"{error}; {wanted_form(workflow, step)}")


def _with_verdict(ended: AttemptResult, wanted: str, *, is_command: bool) -> AttemptResult:
    outcome = ended.outcome
    has_ended = outcome.exit_code is not None and outcome.exit_code >= 0
    if not outcome.is_accepted and not (is_command and has_ended):
        return ended
    verdict = verdict_of(outcome, is_command=is_command)
    if verdict.source == "none":
        return _unanswered(ended, f"{verdict.reason}; {wanted}")
    if not verdict.is_pass:
        error = f"the answer is no: {verdict.reason}"
        outcome = outcome.replace(status=OutcomeStatus.FAILED, error=error)
    return replace(ended, outcome=outcome, verdict=verdict)


def _unanswered(ended: AttemptResult, error: str) -> AttemptResult:
    """Return *ended* as a failure that is followed by one more try at least."""
    return replace(
        ended,
        step=asked_again(ended.step),
        outcome=ended.outcome.replace(status=OutcomeStatus.FAILED, error=error),
    )


def _with_decision(outcome: Outcome) -> Outcome:
    """Return *outcome* with the decision in its text that its client told beside the text."""
    if decision_of(outcome.structured) is None or decision_in(outcome.output) is not None:
        return outcome
    told = json.dumps(outcome.structured, ensure_ascii=False)
    return outcome.replace(output=f"{outcome.output.rstrip()}\n\n{told}")


def wanted_form(workflow: Workflow, step: Step, stage: str = "step") -> str | None:
    """Return what the answer of *step* has to end with to decide; None: nothing is decided.

    In words that an agent is told as well.
    """
    if step.validation is not None and stage != "fix":
        return _VERDICT_FORM
    labels = labels_of(workflow.whole_graph, step.name) if workflow.nodes else ()
    if not labels:
        return None
    listed = ", ".join(f"`{label}`" for label in labels)
    example = json.dumps({"decision": labels[0]}, ensure_ascii=False)
    return (
        f"the last line has to be one of {listed} and nothing else, "
        f"or the answer ends with JSON such as {example}"
    )


def forward_of(workflow: Workflow, step: Step) -> str | None:
    """Return the label with which *step* goes forward in *workflow*; None: it picks no way."""
    return forward_label(workflow.whole_graph, step.name) if workflow.nodes else None


_VERDICT_FORM = (
    'the answer has to end with the JSON object {"pass": true, "reason": "…"}, '
    'or with {"pass": false, "reason": "…"}'
)


def decides(workflow: Workflow, step: Step, stage: str = "step") -> bool:
    """Return whether the answer of *step* decides which way a run of *workflow* goes.

    A step that judges does, and a node whose output picks one of several edges.
    """
    if step.validation is not None and stage != "fix":
        return True
    if not workflow.nodes:
        return False
    graph = graph_of(workflow)
    return step.name in graph.by_id and picks_a_way(graph, step.name)


def as_asked(prepared: PreparedStep) -> tuple[Step, str, str | None]:
    """Return the step, the prompt and the added system prompt as the executor gets them."""
    step, prompt, added = prepared.step, prepared.prompt, prepared.append_system_prompt
    if step.validation is not None and step.output is None and prepared.place.stage == "step":
        step = step.replace(output=VERDICT_OUTPUT)
    if added and "append_system_prompt" not in prepared.executor.supported_fields:
        # A client without a place for it hears it first.
        prompt, added = f"{added}\n\n---\n\n{prompt}", None
    return step, prompt, added


def without_comments(step: Step, executor: Executor, comment_tools: Collection[str]) -> Step:
    """Return *step* without the tools by which its agent could post, if it asks for that.

    An agent whose tools can't be taken away one by one keeps them.
    """
    has_tools = not (step.single_turn or step.disallow_all_tools)
    if not (step.no_comment and has_tools and "disallowed_tools" in executor.supported_fields):
        return step
    taken = tuple(dict.fromkeys((*(step.disallowed_tools or ()), *comment_tools)))
    return step.replace(disallowed_tools=taken or None)


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


def secretless(mark: str, redact: Callable[[str], str]) -> str | None:
    """Return *mark*, a client's id of a conversation; None if there is a secret in it.

    An agent that writes as its client could have one kept in the head and the journal.
    """
    return mark if redact(mark) == mark else None


def without_secrets(outcome: Outcome, redact: Callable[[str], str], **more: Any) -> Outcome:
    """Return *outcome* as it may be kept and shown, with *more* of its fields set."""
    session, value = outcome.session_id, outcome.structured
    return outcome.replace(
        **more,
        output=redact(outcome.output),
        structured=None if value is None else redacted(value, redact),
        error=redact(outcome.error) if outcome.error else None,
        denials=tuple(map(redact, outcome.denials)),
        session_id=None if session is None else secretless(session, redact),
    )


def apply_completion(step: Step, outcome: Outcome) -> Outcome:
    r"""Return *outcome*, complete if it is ok and its output has the step's mark.

    The mark has to stand alone on a line, or as an item of a list: an agent that quotes its
    prompt in the middle of a sentence has not finished anything. White space inside of it and
    Markdown around it don't count, so it may also take several lines.

    >>> step = Step(name="main", complete_when="ALL DONE")
    >>> apply_completion(step, Outcome(status="ok", output="Tests pass.\n - **ALL DONE**\n")).status
    <OutcomeStatus.COMPLETE: 'complete'>
    >>> apply_completion(step, Outcome(status="ok", output="I am not ALL DONE yet")).status
    <OutcomeStatus.OK: 'ok'>
    """
    if not isinstance(step.complete_when, str) or outcome.status is not OutcomeStatus.OK:
        return outcome
    if _stands_alone(step.complete_when.strip(), outcome.output):
        return outcome.replace(status=OutcomeStatus.COMPLETE)
    return outcome


def without_budget(outcome: Outcome, step: Step, left_usd: float | None) -> Outcome:
    """Return *outcome* of a *step* that used up its budget; of a cap on more than it, no failure.

    *left_usd* is what such caps, those of the run and of the invocation, had left for it.
    """
    own = step.max_cost_usd
    if left_usd is None or (own is not None and own <= left_usd):
        return outcome
    why = f"a cap on costs left {left_usd:.4f} USD for it, and that is used up"
    error = f"{(outcome.error or '').partition(chr(10))[0]}\n{why}"
    return outcome.replace(status=OutcomeStatus.INTERRUPTED, error=error)


def near_miss(step: Step, outcome: Outcome) -> str | None:
    """Return why *outcome* is not complete although its output has the step's mark somewhere."""
    mark = step.complete_when
    if not isinstance(mark, str) or outcome.status is not OutcomeStatus.OK:
        return None
    return NEAR_MISS if mark.strip() and _squeezed(mark) in _squeezed(outcome.output) else None


def noted(final: PreparedStep, outcome: Outcome, attempt: Attempt) -> str | None:
    """Return what history tells of the attempt *final*; its log gets what was missed."""
    if (missed := near_miss(final.step, outcome)) is not None:
        # An answer need not end with its line.
        attempt.notice(missed, before="\n")
    return "; ".join(filter(None, (final.note, missed))) or None


NEAR_MISS = "the answer has the text of complete_when, but not alone on a line"
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+")
# A quoted passage (`>`), a heading, and text that is struck out mean something else.


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _stands_alone(mark: str, output: str) -> bool:
    wanted = _squeezed(_ITEM.sub("", mark, count=1)).strip(MARKS)
    lines = [line for line in output.splitlines() if line.strip()]
    if not wanted:
        return bool(mark) and any(line.strip() == mark for line in lines)
    for first, line in enumerate(lines):
        said, place = _squeezed(_ITEM.sub("", line, count=1)).lstrip(MARKS), first + 1
        while said != wanted and wanted.startswith(said) and place < len(lines):
            said, place = said + _squeezed(lines[place]), place + 1
        if said.rstrip(MARKS) == wanted:
            return True
    return False


def route_words(prepared: PreparedStep, chosen: PreparedStep) -> str:
    """Return in words which prompt runs after the router, and why."""
    prompt, own = chosen.step.prompt_name, prepared.step.prompt_name
    if chosen.note is not None:
        return f"{chosen.note}; {prompt} runs, as the workflow says"
    return f"{prompt}, as the workflow says" if prompt == own else f"{prompt} instead of {own}"


def continued(attempt: Attempt) -> Session | None:
    """Return the conversation that *attempt* continues; its log says why it is none."""
    session = attempt.head.session
    if session is None or session.executor != attempt.prepared.agent:
        return None
    why = worn_out(session, attempt.prepared.step, datetime.now(UTC))
    if why is None:
        return session
    attempt.notice(f"a new conversation starts: {why}")
    return None
