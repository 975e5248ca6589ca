"""What the four client programs print, without a model: real scripts for tests.

``claude``, ``codex``, ``gemini`` and ``opencode`` beside this file are executables that a
test puts on PATH. Each reads the prompt, does what the JSON file in FAKE_CLIENT_PLAN says
(see `tests.contract.executor_cases.Behaviour`) and prints the events of its client as it
was recorded. Standard library only: they run under any python3.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Events = Iterator[dict[str, Any]]
SESSION = "0b5c0000-0000-4000-8000-000000000001"


def _claude_opening(answer: str) -> Events:
    yield {
        "type": "system",
        "subtype": "init",
        "session_id": SESSION,
        "model": "claude-sonnet-5",
        "permissionMode": "default",
        "claude_code_version": "2.1.330",
    }
    usage = {"input_tokens": 100, "output_tokens": 10}
    message = {"id": "msg_1", "model": "claude-sonnet-5", "usage": usage}
    yield {
        "type": "assistant",
        "message": {**message, "content": [{"type": "text", "text": answer}]},
        "session_id": SESSION,
    }


def _claude_end(answer: str, *, fails: bool) -> Events:
    share = {"inputTokens": 100, "outputTokens": 10, "costUSD": 0.0003}
    yield {
        "type": "result",
        "subtype": "success",
        "is_error": fails,
        "api_error_status": 400 if fails else None,
        "result": "API Error: 400 bad" if fails else answer,
        "session_id": SESSION,
        "total_cost_usd": 0.0003,
        "model_usage_since_last_result": {"claude-sonnet-5": share},
        "permission_denials": [],
    }


def _codex_opening(answer: str) -> Events:
    yield {"type": "thread.started", "thread_id": SESSION}
    yield {"type": "turn.started"}
    item = {"id": "item_0", "type": "agent_message", "text": answer}
    yield {"type": "item.completed", "item": item}


def _codex_end(_answer: str, *, fails: bool) -> Events:
    if fails:
        yield {"type": "turn.failed", "error": {"message": "unexpected status 400 Bad Request"}}
    else:
        yield {"type": "turn.completed", "usage": {"input_tokens": 100, "output_tokens": 10}}


def _gemini_opening(answer: str) -> Events:
    yield {"type": "init", "session_id": SESSION, "model": "gemini-2.5-pro"}
    yield {"type": "message", "role": "assistant", "content": answer, "delta": True}


def _gemini_end(_answer: str, *, fails: bool) -> Events:
    stats = {"input_tokens": 100, "output_tokens": 10}
    error = {"error": {"type": "unknown", "message": "[API Error: 400]"}} if fails else {}
    yield {"type": "result", "status": "error" if fails else "success", "stats": stats, **error}


def _opencode_opening(answer: str) -> Events:
    yield {"type": "step_start", "sessionID": "ses_1", "part": {"type": "step-start"}}
    yield {"type": "text", "sessionID": "ses_1", "part": {"type": "text", "text": answer}}


def _opencode_end(_answer: str, *, fails: bool) -> Events:
    if fails:
        data = {"message": "bad", "statusCode": 400}
        yield {"type": "error", "sessionID": "ses_1", "error": {"name": "APIError", "data": data}}
        return
    tokens = {"input": 100, "output": 10, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    part = {"type": "step-finish", "reason": "stop", "tokens": tokens, "cost": 0.01}
    yield {"type": "step_finish", "sessionID": "ses_1", "part": part}


OPENINGS: dict[str, Callable[[str], Events]] = {
    "claude": _claude_opening,
    "codex": _codex_opening,
    "gemini": _gemini_opening,
    "opencode": _opencode_opening,
}
ENDS: dict[str, Callable[..., Events]] = {
    "claude": _claude_end,
    "codex": _codex_end,
    "gemini": _gemini_end,
    "opencode": _opencode_end,
}


def _print(events: Events) -> None:
    for event in events:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def main(client: str) -> int:
    """Behave as *client* and as the plan says; return the exit code."""
    plan_path = Path(os.environ["FAKE_CLIENT_PLAN"])
    plan = json.loads(plan_path.read_text())
    folder = plan_path.parent
    (folder / "prompt").write_bytes(sys.stdin.buffer.read())
    (folder / "environ.json").write_text(json.dumps(dict(os.environ)))
    (folder / "cmdline").write_bytes("\0".join(sys.argv).encode())
    if plan["leaves"]:
        command = [sys.executable, "-c", "import time; time.sleep(300)", plan["leaves"]]
        subprocess.Popen(command, start_new_session=True)
    if plan["result"] is not None:
        Path(os.environ["SEQUENCER_RESULT"]).write_text(json.dumps(plan["result"]))
    _print(OPENINGS[client](plan["answer"]))
    (folder / "answered").touch()
    time.sleep(plan["delay_s"])
    _print(ENDS[client](plan["answer"], fails=plan["fails"]))
    return 1 if plan["fails"] else 0
