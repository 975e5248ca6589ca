"""Strict JSON, for files that anyone may have written.

Python's parser accepts NaN, numbers that are too large for a float, duplicate keys and integers of
any length, and overflows its stack on deep nesting. Here each of these is a `ValueError`.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from sequencer.model.whole_numbers import MAX_DIGITS

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)
_DIGITS_TO_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_BRACKETS_TO_BRACES = bytes.maketrans(b"[]", b"{}")
_NO_STRUCTURE = bytes(set(range(256)) - set(b'{}[]"'))


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _parse_int(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_DIGITS:
        message = f"an integer of {len(digits)} digits"
        raise ValueError(message)
    return int(digits)


def _parse_float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        # Written back, it would become null.
        message = f"the number {digits[:20]} is too large"
        raise ValueError(message)
    return number


def _build_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen_keys: set[str] = set()
        for key, _ in pairs:
            if key in seen_keys:
                message = f"the key {key!r} appears twice"
                raise ValueError(message)
            seen_keys.add(key)
    return result


_DECODER = json.JSONDecoder(
    object_pairs_hook=_build_unique_dict,
    parse_constant=_refuse_constant,
    parse_float=_parse_float,
    parse_int=_parse_int,
)


def parse_object(data: bytes, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the JSON object in *data*.

    Raises:
        ValueError: it is too large, not UTF-8, not an object, or refused by `parse_json`.
    """
    if len(data) > max_bytes:
        message = f"{len(data)} bytes, more than {max_bytes}"
        raise ValueError(message)
    value = _parse(data.decode("utf-8"), data)
    if not isinstance(value, dict):
        message = f"a JSON {type(value).__name__} instead of an object"
        raise ValueError(message)  # noqa: TRY004 (callers handle one kind of refusal)
    return value


def parse_json(text: str) -> Any:
    """Return the value of the JSON *text*.

    Raises:
        ValueError: it is nested too deeply, or not strict JSON.
    """
    return _parse(text, text.encode("utf-8", "surrogatepass"))


def _parse(text: str, data: bytes) -> Any:
    """Return the value of the JSON *text*, which is encoded as *data*."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        message = "nested too deeply"
        raise ValueError(message) from None
    if "\\u" in text:
        # JSON can escape half of a surrogate pair, which can't be encoded again; raises here.
        json.dumps(value, ensure_ascii=False).encode()
    if is_deep(data):
        message = f"nested more than {MAX_DEPTH} deep"
        raise ValueError(message)
    return value


def may_be_refused(data: bytes, max_bytes: int) -> bool:
    """Return whether `parse_object` may refuse the JSON in *data*: large, deep, or a long number.

    This is much faster than parsing. It also returns True if the long number is inside a string.
    """
    has_long_number = _LONG_NUMBER in data.translate(_DIGITS_TO_ZEROS)
    return has_long_number or len(data) > max_bytes or is_deep(data)


def is_deep(data: bytes) -> bool:
    """Return whether the JSON in *data* is nested more than `MAX_DEPTH` levels deep.

    >>> [is_deep(b'["[", ' * depth + b"{}" + b"]" * depth) for depth in (63, 64)]
    [False, True]
    """
    if b"\\" in data:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    structure = data.translate(_BRACKETS_TO_BRACES, _NO_STRUCTURE)
    # Most data has too few brackets to be nested that deep.
    if structure.count(b"{") <= MAX_DEPTH:
        return False
    # No escaped quotes are left, so every second part is outside of a string.
    brackets = b"".join(structure.split(b'"')[::2])
    for _ in range(MAX_DEPTH):
        if not brackets:
            return False
        brackets = brackets.replace(b"{}", b"")  # removes the innermost level
    return bool(brackets)
