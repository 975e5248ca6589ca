"""What the fake model server answers: one pair of functions for each model protocol."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fake_model_server import Handler

Json = dict[str, Any]
Answer = Callable[["Handler", Json, Json], None]
Messages = list[tuple[str, str]]


def tokens(value: object) -> int:
    """Return a number of tokens that grows with the text: four characters each."""
    return max(1, len(value if isinstance(value, str) else json.dumps(value)) // 4)


def calls_of(turn: Json) -> list[Json]:
    """Return the tool calls of a turn."""
    single = [{"name": turn["tool"], "input": turn.get("input", {})}] if "tool" in turn else []
    return [*turn.get("tools", []), *single]


def _identity(prefix: str) -> str:
    return f"{prefix}{time.monotonic_ns():024d}"


def _chunks(text: str, size: int = 24) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)] or [""]


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


def anthropic_messages(body: Json) -> Messages:
    """Return (role, text) of each message; tool results have no text of their own."""
    found: Messages = []
    for message in body.get("messages", []):
        content = message.get("content")
        texts = (
            content
            if isinstance(content, str)
            else [block for block in content or [] if block.get("type") == "text"]
        )
        found.append((message["role"], _text_of(texts)))
    return found


def answer_anthropic(http: Handler, turn: Json, body: Json) -> None:
    """Answer /v1/messages, streamed or whole."""
    blocks: list[Json] = []
    if turn.get("thinking"):
        blocks.append({"type": "thinking", "thinking": turn["thinking"], "signature": "ZmFrZQ=="})
    calls = calls_of(turn)
    if turn.get("text") or not calls:
        blocks.append({"type": "text", "text": turn.get("text", "")})
    blocks += [
        {"type": "tool_use", "id": _identity("toolu_"), "name": c["name"], "input": c["input"]}
        for c in calls
    ]
    stop = turn.get("stop_reason") or ("tool_use" if calls else "end_turn")
    usage = {
        "input_tokens": tokens(body.get("messages", "")),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": sum(map(tokens, blocks)),
        **turn.get("model_usage", {}),
    }
    message = {
        "id": _identity("msg_"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }
    if not body.get("stream"):
        http.send_json(200, message)
        return
    http.start_stream()
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    http.send_event({"type": "message_start", "message": begun}, "message_start")
    for index, block in enumerate(blocks):
        if not _stream_block(http, turn, index, block):
            return
    delta = {"stop_reason": stop, "stop_sequence": None}
    http.send_event({"type": "message_delta", "delta": delta, "usage": usage}, "message_delta")
    http.send_event({"type": "message_stop"}, "message_stop")
    http.end_stream()


_BLOCKS: dict[str, tuple[Json, str, str]] = {
    "text": ({"text": ""}, "text_delta", "text"),
    "thinking": ({"thinking": "", "signature": ""}, "thinking_delta", "thinking"),
    "tool_use": ({"input": {}}, "input_json_delta", "partial_json"),
}


def _stream_block(http: Handler, turn: Json, index: int, block: Json) -> bool:
    """Send one content block; return whether the stream goes on."""
    empty, delta_type, key = _BLOCKS[block["type"]]
    start = {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
    http.send_event(start, "content_block_start")
    payload = json.dumps(block["input"]) if key == "partial_json" else block[key]
    for chunk in _chunks(payload):
        delta = {"type": delta_type, key: chunk}
        event = {"type": "content_block_delta", "index": index, "delta": delta}
        http.send_event(event, "content_block_delta")
        http.nap(turn.get("slow", 0))
        http.nap(turn.get("stall", 0))
        if turn.get("drop"):
            http.drop()
            return False
        if turn.get("sse_error"):
            error = {"type": turn["sse_error"], "message": "fake mid-stream error"}
            http.send_event({"type": "error", "error": error}, "error")
            http.end_stream()
            return False
    http.send_event({"type": "content_block_stop", "index": index}, "content_block_stop")
    return True


def responses_messages(body: Json) -> Messages:
    """Return (role, text) of the items of an OpenAI Responses request."""
    found: Messages = []
    is_one_turn = False
    for item in body.get("input", []):
        is_call = item.get("type") == "function_call"
        if is_call or item.get("type", "message") == "message":
            role = "assistant" if is_call else item.get("role", "user")
            text = "" if is_call else _text_of(item.get("content"))
            # What the model said and what it called in one turn are items of their own.
            if not (is_call and is_one_turn):
                found.append((role, text))
        is_one_turn = is_call or item.get("role") == "assistant"
    return found


def answer_responses(http: Handler, turn: Json, body: Json) -> None:
    """Answer /v1/responses, always streamed."""
    output: list[Json] = []
    if turn.get("text") or not calls_of(turn):
        content = [{"type": "output_text", "text": turn.get("text", ""), "annotations": []}]
        output.append(
            {"type": "message", "id": _identity("msg_"), "role": "assistant", "content": content}
        )
    output += [
        {
            "type": "function_call",
            "id": _identity("fc_"),
            "call_id": _identity("call_"),
            "name": call["name"],
            "arguments": json.dumps(call["input"]),
        }
        for call in calls_of(turn)
    ]
    sent, written = tokens(body.get("input", "")), tokens(output)
    usage = {"input_tokens": sent, "output_tokens": written, "total_tokens": sent + written}
    response = {"id": _identity("resp_"), "object": "response", "model": body.get("model")}
    http.start_stream()
    begun: Json = {**response, "status": "in_progress", "output": []}
    http.send_event({"type": "response.created", "response": begun}, "response.created")
    for index, item in enumerate(output):
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        http.send_event(done, "response.output_item.done")
    if turn.get("drop"):
        http.drop()
        return
    end: Json = {**response, "status": "completed", "output": output, "usage": usage}
    if stop := turn.get("stop_reason"):
        end |= {"status": "incomplete", "incomplete_details": {"reason": stop}}
    kind = f"response.{end['status']}"
    http.send_event({"type": kind, "response": end}, kind)
    http.end_stream()


def chat_messages(body: Json) -> Messages:
    """Return (role, text) of the messages of a Chat Completions request."""
    return [(m["role"], _text_of(m.get("content"))) for m in body.get("messages", [])]


def answer_chat(http: Handler, turn: Json, body: Json) -> None:
    """Answer /v1/chat/completions, always streamed."""
    calls = [
        {
            "index": index,
            "id": _identity("call_"),
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["input"])},
        }
        for index, call in enumerate(calls_of(turn))
    ]
    base = {
        "id": _identity("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": body.get("model"),
    }
    deltas: list[Json] = [{"role": "assistant", "content": turn.get("text", "")}]
    deltas += [{"tool_calls": [call]} for call in calls]
    http.start_stream()
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        http.send_event({**base, "choices": [choice]})
    if turn.get("drop"):
        http.drop()
        return
    reason = turn.get("stop_reason") or ("tool_calls" if calls else "stop")
    http.send_event({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    sent, written = tokens(body.get("messages", "")), tokens(turn.get("text", "") or calls)
    usage = {"prompt_tokens": sent, "completion_tokens": written, "total_tokens": sent + written}
    http.send_event({**base, "choices": [], "usage": usage})
    http.send_event("[DONE]")
    http.end_stream()


def gemini_messages(body: Json) -> Messages:
    """Return (role, text) of the contents of a generateContent request."""
    return [
        ("assistant" if item.get("role") == "model" else "user", _text_of(item.get("parts")))
        for item in body.get("contents", [])
    ]


def answer_gemini(http: Handler, turn: Json, body: Json) -> None:
    """Answer generateContent, whole or streamed."""
    text = turn.get("text", "")
    parts: list[Json] = [{"text": text}] if text or not calls_of(turn) else []
    parts += [{"functionCall": {"name": c["name"], "args": c["input"]}} for c in calls_of(turn)]
    sent, written = tokens(body.get("contents", "")), tokens(text)
    reason = turn.get("stop_reason") or "STOP"
    content = {"role": "model", "parts": parts}
    reply: Json = {
        "candidates": [{"content": content, "finishReason": reason, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": sent,
            "candidatesTokenCount": written,
            "totalTokenCount": sent + written,
        },
        "modelVersion": "gemini-fake",
    }
    if "stream" not in http.path:
        http.send_json(200, reply)
        return
    http.start_stream()
    if turn.get("drop"):
        reply["candidates"][0].pop("finishReason")
    http.send_event(reply)
    if turn.get("drop"):
        http.drop()
        return
    http.end_stream()
