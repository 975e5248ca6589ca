"""Random event streams of the four clients, each with a label that says what it shows.

A stream is told twice: as the events that its client would print, and as a `Label`, from what
the generator has decided and the rules that the documentation states. No parser of the program
has a part in it, nor its tables of reasons.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

Json = dict[str, Any]
RESULT, BACKGROUND, BROKEN, LOST = "result", "background", "broken", "lost"
"""What becomes of a tool call: its result comes; it goes on in the background; nobody can read
the event with its result; nothing comes at all."""
WORDS = ("I look.", "Two tests fail,\nI mend them.", "ö → done", "  ", "\n", "ok")
COMMANDS = ("npm test", "git status", "cat a.py")
UNKNOWN_REASONS = ("brand_new", "later", "x1")


@dataclass
class Call:
    """One tool call."""

    key: str
    command: str
    output: str
    end: str
    is_subagents: bool = False


@dataclass
class Message:
    """What a model says and calls in one reply."""

    texts: list[str]
    calls: list[Call]


@dataclass
class Label:
    """What a stream shows, and whether its turn counts as ended by itself."""

    is_accepted: bool
    has_text: bool
    tool_calls: int
    open_calls: int
    repeated_calls: int
    answer: str

    @property
    def has_evidence(self) -> bool:
        return self.has_text or self.tool_calls > self.open_calls


@dataclass
class Stream:
    """What a client prints, its exit code, and the label."""

    lines: list[bytes]
    exit_code: int
    label: Label


@dataclass
class Plan:
    """What happens in a turn, whichever client tells it."""

    messages: list[Message] = field(default_factory=list)
    reason: str | None = None
    reason_is: str = "clean"
    """clean, cut-off or unknown."""
    has_end: bool = True
    """The client's terminal event of success comes."""
    exit_code: int = 0


def planned(rng: random.Random, reasons: dict[str, tuple[str | None, ...]]) -> Plan:
    """Return a random plan; *reasons* are the client's, by what they are."""
    messages, number = [], 0
    for _ in range(rng.randint(1, 4)):
        texts = [rng.choice(WORDS) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        calls = []
        for _ in range(rng.choice((0, 1, 1, 2))):
            number += 1
            end = rng.choices((RESULT, BACKGROUND, BROKEN, LOST), (16, 1, 1, 1))[0]
            output = rng.choice(("fine", "", "error"))
            calls.append(Call(f"call_{number}", rng.choice(COMMANDS), output, end))
        messages.append(Message(texts, calls))
    if rng.random() < 0.6:
        messages.append(Message([rng.choice(WORDS)], []))
    kind = rng.choices(tuple(reasons), [6 if each == "clean" else 2 for each in reasons])[0]
    return Plan(
        messages,
        reason=rng.choice(reasons[kind]),
        reason_is=kind,
        has_end=rng.random() > 0.08,
        exit_code=0 if rng.random() > 0.08 else rng.choice((1, 2, 130)),
    )


def labelled(plan: Plan, open_calls: int, pairs: list[Any], answer: str) -> Label:
    """Return the label of *plan*, by the rules as they are documented."""
    has_text = any(text.strip() for message in plan.messages for text in message.texts)
    is_ended = {
        "clean": open_calls == 0,
        "unknown": open_calls == 0 and has_text,
        "cut-off": False,
    }[plan.reason_is]
    rows = [len(list(row)) for _, row in groupby(pairs)]
    return Label(
        is_accepted=is_ended and plan.has_end and plan.exit_code == 0,
        has_text=has_text,
        tool_calls=sum(len(message.calls) for message in plan.messages),
        open_calls=open_calls,
        repeated_calls=max((row for row in rows if row > 1), default=0),
        answer=answer,
    )


def last_said(messages: list[Message], joined: Callable[[list[str]], str]) -> str:
    """Return the text of the last message that has any."""
    said = [joined(message.texts) for message in messages]
    return next((text for text in reversed(said) if text.strip()), "")


def noise(rng: random.Random, *events: Json) -> Iterator[Json]:
    """Yield one of *events* now and then."""
    if rng.random() < 0.25:
        yield rng.choice(events)


def lines_of(rng: random.Random, events: Iterator[Json | bytes]) -> list[bytes]:
    """Return *events* as lines; the order of an object's keys says nothing."""
    lines = []
    for event in events:
        if isinstance(event, bytes):
            lines.append(event)
            continue
        items = list(event.items())
        rng.shuffle(items)
        lines.append(json.dumps(dict(items)).encode())
    return lines


def broken(event: Json) -> bytes:
    """Return *event* as a line that nobody can read."""
    return json.dumps(event).encode()[:-2] + b"\xff"


# --- claude ------------------------------------------------------------------------

CLAUDE_REASONS: dict[str, tuple[str | None, ...]] = {
    "clean": ("end_turn", "stop_sequence", None),
    "cut-off": (
        *("tool_use", "pause_turn", "max_tokens", "refusal", "compaction"),
        *("model_context_window_exceeded", "tool_deferred"),
    ),
    "unknown": UNKNOWN_REASONS,
}


def claude(rng: random.Random) -> Stream:
    plan = planned(rng, CLAUDE_REASONS)
    for message in plan.messages:
        for call in message.calls:
            call.is_subagents = rng.random() < 0.15
    has_form = plan.reason == "tool_use" and rng.random() < 0.4
    if has_form:
        plan.reason_is = "clean"
        plan.messages.append(Message([], [Call("form", "form", "fine", RESULT)]))
    # Of an earlier message all are answered, or claude had not gone on.
    last = plan.messages[-1].calls if plan.has_end else []
    waiting = [call for call in last if not call.is_subagents and call.end == LOST]
    if any(call.end == BROKEN for call in last):
        waiting = []  # what can't be read may be the result of any of them
    answer = last_said(plan.messages, "\n".join)
    pairs = [
        (call.command, call.output)
        for message in plan.messages
        for call in message.calls
        if call.end == RESULT or (call.end == BACKGROUND and call.output)
    ]
    lines = lines_of(rng, _claude_events(rng, plan, has_form=has_form))
    if has_form:
        answer = '{"pass": true}'
    return Stream(lines, plan.exit_code, labelled(plan, len(waiting), pairs, answer))


def _claude_events(rng: random.Random, plan: Plan, *, has_form: bool) -> Iterator[Json | bytes]:
    yield {"type": "system", "subtype": "init", "session_id": "s", "model": "m"}
    has_pieces = rng.random() < 0.5
    for number, message in enumerate(plan.messages):
        yield from noise(
            rng,
            {"type": "system", "subtype": "status", "status": "requesting"},
            {"type": "prompt_suggestion", "suggestion": "run the tests"},
            {"type": "rate_limit_event", "rate_limit_info": {"status": "allowed"}},
        )
        yield from _claude_message(f"msg_{number}", message, has_pieces=has_pieces)
        for call in message.calls:
            yield from _claude_result(call)
        if rng.random() < 0.1:
            # A lead whose turn ends is woken again by what runs in the background.
            yield {"type": "result", "subtype": "success", "is_error": False, "result": "Later."}
    if not plan.has_end:
        # Without a last word behind the last message.
        yield from _claude_message("msg_end", Message([], []), has_pieces=True)
        return
    said = plan.messages[-1].texts
    result = {"type": "result", "subtype": "success", "is_error": False, "session_id": "s"}
    result["result"] = said[-1] if said and not plan.messages[-1].calls else ""
    if plan.reason is not None or rng.random() < 0.5:
        result["stop_reason"] = plan.reason
    if rng.random() < 0.5:
        result["terminal_reason"] = "completed"
    if has_form:
        result |= {"structured_output": {"pass": True}, "result": '{"pass": true}'}
    yield result


def _claude_message(key: str, message: Message, *, has_pieces: bool) -> Iterator[Json]:
    head = {"id": key, "role": "assistant", "stop_reason": None}
    if has_pieces:
        started = {"type": "message_start", "message": {**head, "content": []}}
        yield {"type": "stream_event", "event": started, "parent_tool_use_id": None}
    for text in message.texts:
        if has_pieces:
            piece = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
            yield {"type": "stream_event", "event": piece, "parent_tool_use_id": None}
        block = {"type": "text", "text": text}
        yield {"type": "assistant", "message": {**head, "content": [block]}}
    for call in message.calls:
        given = {"command": call.command}
        asked: Json = {"type": "tool_use", "id": call.key, "name": "Bash", "input": given}
        if call.is_subagents:
            own = {**head, "id": f"sub_{call.key}", "content": [asked]}
            yield {"type": "assistant", "message": own, "parent_tool_use_id": "t0"}
        else:
            yield {"type": "assistant", "message": {**head, "content": [asked]}}


def _claude_result(call: Call) -> Iterator[Json | bytes]:
    block = {"type": "tool_result", "tool_use_id": call.key, "content": call.output}
    parent = "t0" if call.is_subagents else None
    message = {"role": "user", "content": [block]}
    event = {"type": "user", "message": message, "parent_tool_use_id": parent}
    if call.end == BACKGROUND:
        task = {"type": "system", "subtype": "task_started", "is_backgrounded": True}
        yield {**task, "tool_use_id": call.key}
    if call.end == BROKEN:
        yield broken(event)
    elif call.end == RESULT or (call.end == BACKGROUND and call.output):
        yield event


# --- codex -------------------------------------------------------------------------


def codex(rng: random.Random) -> Stream:
    plan = planned(rng, {"clean": (None,)})
    kinds = {
        call.key: rng.choice(("command_execution", "mcp_tool_call", "file_change", "web_search"))
        for message in plan.messages
        for call in message.calls
    }
    calls = [call for message in plan.messages for call in message.calls]
    for call in calls:
        if call.end == BACKGROUND:
            kinds[call.key] = "command_execution"
        if kinds[call.key] == "file_change" and call.end == LOST:
            call.end = RESULT  # it is told of only when it is done
    waiting, pairs = 0, []
    for call in calls:
        if call.end == BROKEN:
            waiting = 0
        elif call.end == LOST and kinds[call.key] != "command_execution":
            waiting += 1
        elif call.end != LOST and not (call.end == BACKGROUND and call.output == ""):
            pairs.append((kinds[call.key], call.command, call.output, call.end))
    # Nobody can know of a change whose only event can't be read.
    unread = [call for call in calls if kinds[call.key] == "file_change" and call.end == BROKEN]
    events = _codex_events(rng, plan, kinds)
    # Each text is a message of its own.
    texts = [Message([text], []) for message in plan.messages for text in message.texts]
    label = labelled(plan, waiting, pairs, last_said(texts, "".join))
    label.tool_calls -= len(unread)
    return Stream(lines_of(rng, events), plan.exit_code, label)


def _codex_events(rng: random.Random, plan: Plan, kinds: dict[str, str]) -> Iterator[Json | bytes]:
    yield {"type": "thread.started", "thread_id": "0199"}
    yield {"type": "turn.started"}
    for message in plan.messages:
        yield from noise(
            rng,
            {"type": "error", "message": "Reconnecting... 1/5"},
            {"type": "item.completed", "item": {"id": "n", "type": "error", "message": "old"}},
            {"type": "item.updated", "item": {"id": "t", "type": "todo_list", "items": []}},
            {"type": "item.completed", "item": {"id": "r", "type": "reasoning", "text": "Hm."}},
        )
        for text in message.texts:
            item = {"id": "m", "type": "agent_message", "text": text}
            yield {"type": "item.completed", "item": item}
        for call in message.calls:
            yield from _codex_call(call, kinds[call.key])
    if plan.has_end:
        yield {"type": "turn.completed", "usage": {"input_tokens": 9, "output_tokens": 9}}
    elif rng.random() < 0.5:
        why = "Incomplete response returned, reason: max_output_tokens"
        yield {"type": "turn.failed", "error": {"message": why}}


def _codex_call(call: Call, kind: str) -> Iterator[Json | bytes]:
    item: Json = {"id": call.key, "type": kind, "status": "in_progress"}
    if kind == "file_change":
        item["changes"] = [{"path": call.command, "kind": "update"}]
    elif kind == "web_search":
        item["query"] = ""
    else:
        item["command" if kind == "command_execution" else "tool"] = call.command
    if kind != "file_change":
        yield {"type": "item.started", "item": item}
    done = {**item, "status": "completed", "aggregated_output": call.output, "exit_code": 0}
    if kind == "web_search":
        done["query"] = call.command
    event = {"type": "item.completed", "item": done}
    if call.end == BACKGROUND:
        # As it is when the turn ends; not every version tells of it.
        if call.output:
            running = {**item, "aggregated_output": call.output}
            yield {"type": "item.completed", "item": running}
    elif call.end == BROKEN:
        yield broken(event)
    elif call.end == RESULT:
        yield event


# --- gemini ------------------------------------------------------------------------

GEMINI_REASONS: dict[str, tuple[str | None, ...]] = {
    "clean": (None,),
    "cut-off": ("Loop detected, stopping execution", "Maximum session turns exceeded", "Odd."),
    "unknown": ("Agent execution blocked: not on a Sunday",),
}


def gemini(rng: random.Random) -> Stream:
    plan = planned(rng, GEMINI_REASONS)
    waiting, pairs, has_results = 0, [], False
    for message in plan.messages:
        if (message.calls or message.texts) and has_results:
            waiting, has_results = 0, False
        for call in message.calls:
            call.end = RESULT if call.end == BACKGROUND else call.end
        waiting += len(message.calls)
        for call in message.calls:
            if call.end == BROKEN:
                waiting = 0
            elif call.end == RESULT:
                has_results = True
                pairs.append((call.command, call.output))
                waiting = max(waiting - 1, 0)
    groups: list[Message] = [Message([], [])]
    for message in plan.messages:
        groups[-1].texts += message.texts
        if message.calls:
            groups.append(Message([], []))
    events = _gemini_events(rng, plan)
    answer = last_said(groups, "".join)
    return Stream(lines_of(rng, events), plan.exit_code, labelled(plan, waiting, pairs, answer))


def _gemini_events(rng: random.Random, plan: Plan) -> Iterator[Json | bytes]:
    yield {"type": "init", "session_id": "s", "model": "gemini-2.5-pro"}
    yield {"type": "message", "role": "user", "content": "go"}
    for message in plan.messages:
        yield from noise(
            rng,
            {"type": "error", "severity": "warning", "message": "Slow network"},
            {"type": "telemetry", "content": "x"},
        )
        for text in message.texts:
            yield {"type": "message", "role": "assistant", "content": text, "delta": True}
        for call in message.calls:
            given = {"command": call.command}
            event = {"type": "tool_use", "tool_name": "shell", "parameters": given}
            yield {**event, "tool_id": call.key}
        for call in message.calls:
            done = {"type": "tool_result", "tool_id": call.key, "status": "success"}
            done |= {"output": call.output}
            if call.end == BROKEN:
                yield broken(done)
            elif call.end == RESULT:
                yield done
    if plan.reason is not None:
        severity = "warning" if plan.reason.startswith(("Loop", "Agent")) else "error"
        yield {"type": "error", "severity": severity, "message": plan.reason}
    if plan.has_end:
        yield {"type": "result", "status": "success", "stats": {"input_tokens": 9}}
    elif rng.random() < 0.5:
        yield {"type": "result", "status": "error", "error": {"message": "[API Error: 400]"}}


# --- opencode ----------------------------------------------------------------------

OPENCODE_REASONS: dict[str, tuple[str | None, ...]] = {
    "clean": ("stop", None),
    "cut-off": ("tool-calls", "length", "content-filter", "error"),
    "unknown": ("unknown", "other", *UNKNOWN_REASONS),
}


def opencode(rng: random.Random) -> Stream:
    plan = planned(rng, OPENCODE_REASONS)
    waiting, pairs = 0, []
    for message in plan.messages:
        waiting = 0
        for call in message.calls:
            call.end = RESULT if call.end == BACKGROUND else call.end
            if call.end == BROKEN:
                waiting = 0
            elif call.end == LOST:
                waiting += 1
            else:
                pairs.append((call.command, call.output))
    groups: list[Message] = [Message([], [])]
    for message in plan.messages:
        groups[-1].texts += message.texts
        if any(call.end != BROKEN for call in message.calls):
            groups.append(Message([], []))
    events = _opencode_events(rng, plan)
    answer = last_said(groups, "\n".join)
    label = labelled(plan, waiting, pairs, answer)
    # Nobody can know of a call whose only event can't be read.
    label.tool_calls -= sum(call.end == BROKEN for each in plan.messages for call in each.calls)
    return Stream(lines_of(rng, events), plan.exit_code, label)


def _opencode_events(rng: random.Random, plan: Plan) -> Iterator[Json | bytes]:
    for number, message in enumerate(plan.messages):
        yield {"type": "step_start", "sessionID": "ses", "part": {"type": "step-start"}}
        yield from noise(rng, {"type": "reasoning", "part": {"text": "Hm."}}, {"type": "done"})
        for text in message.texts:
            yield {"type": "text", "sessionID": "ses", "part": {"type": "text", "text": text}}
        for call in message.calls:
            status = "running" if call.end == LOST else "completed"
            state = {"status": status, "input": {"command": call.command}, "output": call.output}
            part = {"type": "tool", "tool": "bash", "callID": call.key, "state": state}
            event = {"type": "tool_use", "sessionID": "ses", "part": part}
            yield broken(event) if call.end == BROKEN else event
        is_last = number == len(plan.messages) - 1
        if is_last and not plan.has_end:
            return
        finish: Json = {"type": "step-finish", "cost": 0.01, "tokens": {"input": 9, "output": 9}}
        if not is_last:
            finish["reason"] = "tool-calls"
        elif plan.reason is not None:
            finish["reason"] = plan.reason
        yield {"type": "step_finish", "sessionID": "ses", "part": finish}


STREAMS: dict[str, Callable[[random.Random], Stream]] = {
    "claude": claude,
    "codex": codex,
    "gemini": gemini,
    "opencode": opencode,
}
