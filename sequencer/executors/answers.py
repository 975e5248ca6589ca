"""An agent's answer in the form that its step's schema asks for.

A client that supports schemas gets the step's schema in its own dialect. Whether the answer
fits is checked elsewhere, the same way for every executor. If the answer decides which way the
run goes, the result file can't give it: see `StepRequest.decides`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any

from sequencer.executors.protocol import Listener, Piece, StepRequest
from sequencer.model.outcome import Outcome
from sequencer.model.step import Step
from sequencer.store import strictjson

MAX_ARGUMENT_BYTES = 100_000
"""Below 128 KiB, the system's limit for one argument of a program."""
MAX_ANSWER_CHARS = 1024 * 1024


def build_answer_schema(step: Step) -> dict[str, Any] | None:
    """Return the JSON Schema of the step's answer, if it has one."""
    return None if step.output is None else step.output.json_schema


def schema_text(step: Step) -> str | None:
    """Return the schema of *step* as one argument of a program.

    Raises:
        ValueError: it is too long for an argument.
    """
    schema = build_answer_schema(step)
    if schema is None:
        return None
    text = json.dumps(schema, separators=(",", ":"))
    if len(text) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"output.schema is longer than {MAX_ARGUMENT_BYTES} bytes; shorten it")
    return text


def to_strict_schema(schema: Any) -> Any:
    """Return *schema* for OpenAI's strict mode: closed objects, every key required.

    An answer that fits it fits *schema* too, unless *schema* has rules about other keys.

    >>> to_strict_schema({"type": "object", "properties": {"ok": {"type": "boolean"}}})["required"]
    ['ok']
    """
    if isinstance(schema, list):
        return [to_strict_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict_schema = {key: to_strict_schema(value) for key, value in schema.items()}
    properties = schema.get("properties")
    # A property may itself be named "properties" or "type"; then the value isn't a list of names.
    if schema.get("type") == "object" and isinstance(properties, dict):
        strict_schema |= {"additionalProperties": False, "required": list(properties)}
    return strict_schema


def parse_json(text: str) -> Any:
    """Return *text* parsed as JSON, or None if it is not JSON."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def replace_surrogates(text: str) -> str:
    r"""Return *text* with each half of a surrogate pair replaced, so that UTF-8 can encode it.

    JSON can escape such a half, and a client makes one when it cuts a text in the middle of an
    emoji.

    >>> replace_surrogates("caf\u00e9 \ud83d") == "caf\u00e9 ?"
    True
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def with_structured(outcome: Outcome, value: Any) -> Outcome:
    """Return *outcome* with *value* as its structured answer, and as its output if that is empty.

    An answer that no JSON file can store (Infinity) is left out; half a surrogate pair is replaced.
    An answer that no reader of our files takes (nested too deeply, an integer of many digits)
    is only a text.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return outcome
    text = replace_surrogates(text)
    update: dict[str, Any] = {}
    with suppress(ValueError):
        update["structured"] = strictjson.parse_json(text)
    if not outcome.output and value is not None:
        update["output"] = text
    return outcome.replace(**update)


_DIGEST_BYTES = 8


def compute_short_digest(text: str) -> str:
    """Return a short digest of *text*, for comparisons."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).hexdigest()


def with_answer_digest(outcome: Outcome) -> Outcome:
    """Return *outcome* with the digest of its answer in its evidence."""
    evidence, answer = outcome.evidence, outcome.output.strip()
    if evidence is None or not answer:
        return outcome
    return outcome.replace(
        evidence=evidence.replace(has_text=True, answer=compute_short_digest(answer))
    )


Ignored = Callable[[], None] | None
"""Called if the result file says something that is ignored; None: nothing is ignored."""
_IGNORED = (
    b"[sequencer] the result file is ignored: the answer of this step decides the way, so it is "
    b"what the client itself says, or what a command prints\n"
)


def make_ignored_notifier(request: StepRequest, listener: Listener) -> Ignored:
    """Return a function that notifies *listener* that the result file is ignored.

    None: the result file is used.
    """
    return partial(listener.write, _IGNORED, Piece.NOTICE) if request.decides else None
