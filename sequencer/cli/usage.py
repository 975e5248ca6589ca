"""Rephrases click's messages about a wrong command line in the words of this program.

click's own messages name its types. Not promised: that a message of a later click is recognized;
it is then shown as it is.
"""

from __future__ import annotations

import re
from typing import Any

import click

from sequencer.cli.options import FAR

_NOT = re.compile(r"'?(.*?)'? is not (?:a valid |in the range |one of )", re.DOTALL)
"""Finds the rejected value in a message of click."""
_SENTENCES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Option '(.+)' requires an argument\."), r"\1 needs a value"),
    (re.compile(r"Option '(.+)' requires (\d+) arguments\."), r"\1 needs \2 values"),
    (re.compile(r"Option '(.+)' does not take a value\."), r"\1 takes no value"),
    (re.compile(r"Got unexpected extra argument \((.+)\)", re.DOTALL), r"unexpected argument: \1"),
    (
        re.compile(r"Got unexpected extra arguments \((.+)\)", re.DOTALL),
        r"unexpected arguments: \1",
    ),
    (re.compile(r"\w+ (.+) is a file\."), r"\1 is a file, but a folder is needed"),
    (re.compile(r"\w+ (.+) is a directory\."), r"\1 is a folder, but a file is needed"),
    (re.compile(r"\w+ (.+) does not exist\."), r"there is no \1"),
    (re.compile(r"\w+ (.+) is not (read|writ)able\."), r"\1 can't be used: \2ing it is denied"),
)


def usage_message(error: click.ClickException) -> str:
    """Return a message with the option or argument, the expected value, and the typed value."""
    if isinstance(error, click.NoSuchOption):
        matches = sorted(error.possibilities or ())
        guess = f"; did you mean {join_alternatives(matches)}?" if matches else ""
        return f"there is no option {error.option_name}{guess}"
    if isinstance(error, click.BadParameter):
        name = _format_name(error)
        if isinstance(error, click.MissingParameter):
            expected_values = _format_expected(error.param)
            return f"{name} is missing" + (f": {expected_values}" if expected_values else "")
        value, expected_values = _NOT.match(error.message), _format_expected(error.param)
        if value is not None and expected_values:
            return f"{name}: {expected_values}, not {value[1]!a}"
        return f"{name}: {_simplify_message(error.message)}"
    return _simplify_message(error.message)


def _format_name(error: click.BadParameter) -> str:
    """Return the name by which people know the option or argument that is wrong."""
    param = error.param
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    if isinstance(param, click.Argument):
        # "[DIR]...", as the usage line shows it, becomes "DIR".
        return re.sub(r"[\[\].]", "", param.human_readable_name)
    hint = error.param_hint or "the command line"
    return hint if isinstance(hint, str) else " / ".join(hint)


def _format_expected(param: click.Parameter | None) -> str:
    """Return the values that *param* takes; empty unless it takes a number or a choice."""
    kind: Any = None if param is None else param.type
    if isinstance(kind, click.Choice):
        return f"expected {join_alternatives([str(choice) for choice in kind.choices])}"
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        return f"expected {number}{_format_bounds(kind)}"
    if kind is click.INT:
        return "expected a whole number"
    return "expected a number" if kind is click.FLOAT else ""


def _format_bounds(kind: Any) -> str:
    """Return the bounds of *kind* in words, except bounds that no one types."""
    minimum = None if kind.min is None or kind.min <= -FAR else kind.min
    maximum = None if kind.max is None or kind.max >= FAR - 1 else kind.max
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" greater than {minimum}" if kind.min_open else f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"


def join_alternatives(words: list[str]) -> str:
    """Return *words* as a list of alternatives.

    >>> join_alternatives(["a"]), join_alternatives(["a", "b", "c"])
    ('a', 'a, b or c')
    """
    *first_words, last_word = words
    return f"{', '.join(first_words)} or {last_word}" if first_words else last_word


def _simplify_message(message: str) -> str:
    for pattern, words in _SENTENCES:
        if match := pattern.match(message):
            return match.expand(words)
    return message[:1].lower() + message[1:].rstrip(".")
