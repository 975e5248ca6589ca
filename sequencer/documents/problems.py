"""Configuration problems: all of a file at once, each with file, line and key.

pydantic finds them; this module says them in the words of the file's author.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from sequencer.documents.keys import dotted, known_keys
from sequencer.documents.reader import KeyPath
from sequencer.errors import ConfigurationError, UnknownName

SHOWN_CHARS = 60

_TEXTS = {
    "string_type": "expected text; put it in quotes",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "dict_type": "expected a mapping ('key: value' lines)",
    "model_type": "expected a mapping ('key: value' lines)",
    "missing": "has to be there",
    "too_short": "has to have at least one item",
}
_MISSING = ("missing", "too_short", "extends_missing", "sink_missing")
"""In a later round these are what taking a wrong value out has left behind."""


class ConfigurationErrors(ConfigurationError):
    """Everything that is wrong with a file, in its order."""

    def __init__(self, errors: Iterable[ConfigurationError]) -> None:
        """Hold *errors*; the message is all of theirs."""
        self.errors = tuple(errors)
        super().__init__(str(self))

    @property
    def each(self) -> tuple[ConfigurationError, ...]:
        """See `SequencerError.each`."""
        return self.errors

    def __str__(self) -> str:
        """Return all of them, as they are now: whoever shows them may know the places."""
        return "\n".join(str(error) for error in self.errors)


def raise_all(errors: list[ConfigurationError]) -> None:
    """Raise *errors*: one as it is, more of them together; none: return."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigurationErrors(errors)


def located(where: str, path: KeyPath) -> str:
    """Return *where* with the key path behind it."""
    return f"{where}: {dotted(path)}" if path else where


class Problem(NamedTuple):
    """One thing that pydantic found."""

    path: KeyPath
    error: ConfigurationError
    is_missing: bool


def problems_of(
    error: ValidationError,
    root: type[BaseModel],
    where: Callable[[KeyPath], str],
    origin: Callable[[KeyPath], KeyPath] = tuple,
) -> list[Problem]:
    """Return each problem that pydantic found in a value of *root*.

    *origin* says under which key a value was written, where that is not its own.
    """
    found = [_problem(one, root, where, origin) for one in _single(error)]
    # pydantic calls a list too short as well when an item of it was refused.
    return [
        one
        for one in found
        if not one.is_missing
        or not any(len(p) > len(one.path) and p[: len(one.path)] == one.path for p, *_ in found)
    ]


def _single(error: ValidationError) -> Iterator[dict[str, Any]]:
    """Yield each error of *error*, those instead that a model within it had with its fields."""
    for one in error.errors():
        inner = one.get("ctx", {}).get("error")
        if isinstance(inner, ValidationError):
            for below in _single(inner):
                yield {**below, "loc": (*one["loc"], *below["loc"])}
        else:
            yield dict(one)


def _problem(
    found: dict[str, Any],
    root: type[BaseModel],
    where: Callable[[KeyPath], str],
    origin: Callable[[KeyPath], KeyPath],
) -> Problem:
    # pydantic adds a '[key]' where a mapping's key is wrong rather than its value.
    path = tuple(part for part in found["loc"] if part != "[key]")
    kind = found["type"]
    if kind == "extra_forbidden":
        known = known_keys(root, path[:-1])
        place = located(where(path), origin(path[:-1]))
        unknown = UnknownName("key", str(path[-1]), known, where=place)
        return Problem(path, unknown, is_missing=False)
    text = _TEXTS.get(kind) or _plain(found["msg"])
    if kind == "too_long" and "actual_length" in found.get("ctx", {}):
        # pydantic speaks of tuples, and of what is left after validation.
        most, count = found["ctx"]["max_length"], found["ctx"]["actual_length"]
        text = f"should have at most {most} items, not {count}"
    value = found["input"]
    is_scalar = isinstance(value, (str, int, float)) and kind not in ("missing", "value_error")
    if is_scalar and len(str(value)) <= SHOWN_CHARS:
        text = f"{text}, not {value!a}"
    problem = ConfigurationError(text, where=located(where(path), origin(path)))
    return Problem(path, problem, is_missing=kind in _MISSING)


def _plain(message: str) -> str:
    text = message.removeprefix("Value error, ").replace("Input should", "should")
    return text[:1].lower() + text[1:]
