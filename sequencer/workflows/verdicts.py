"""Reads answers: the verdict of a step that judges, and whether JSON fits its schema.

A verdict depends only on the outcome. An answer without an exact verdict is neither a "yes" nor
a "no": the judge is asked again.

Not promised: that the agent tells the truth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sequencer.errors import ConfigurationError
from sequencer.model.answers import read_last_object
from sequencer.model.outcome import Outcome, Verdict, VerdictSource
from sequencer.model.step import Retry, Step

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

REASON_CHARS = 1000
"""Maximum length of a reason, which goes into the head and into the fixer's prompt."""
EXIT_REASON_CHARS = 600
_MIN_ATTEMPTS = 2
"""Minimum number of attempts for an answer that has to decide."""
_PROBLEM_CHARS = 300
_VALUE_CHARS = 100


def with_second_attempt(step: Step) -> Step:
    """Return *step* with at least two attempts, because its answer has to decide and did not."""
    retry = step.retry or Retry()
    return step.replace(retry=retry.replace(max_attempts=max(retry.max_attempts, _MIN_ATTEMPTS)))


def read_verdict(outcome: Outcome, *, is_command: bool) -> Verdict:
    """Return the verdict in the structured answer, in JSON in the text, or in the exit code.

    In a text, the last outermost object with a boolean ``pass`` counts. An attempt that was not
    accepted never passes, whatever it said before it failed.

    >>> from sequencer.model.outcome import OutcomeStatus
    >>> answer = Outcome(status=OutcomeStatus.OK, output='Two fail. {"pass": false, "reason": "2"}')
    >>> read_verdict(answer, is_command=False)
    Verdict(is_pass=False, reason='2', source='json')
    """
    for source, judgment in _iter_candidates(outcome):
        is_pass, reason = judgment
        if is_pass and not outcome.is_accepted:
            is_pass, reason = False, outcome.error or f"the attempt ended {outcome.status}"
        return Verdict(is_pass, _cut(reason, REASON_CHARS), source)
    if is_command and outcome.exit_code is not None:
        is_pass = outcome.exit_code == 0 and outcome.is_accepted
        return Verdict(is_pass, _last_lines(outcome), "exit-code")
    return Verdict(is_pass=False, reason="no verdict in the answer", source="none")


def _iter_candidates(outcome: Outcome) -> Iterator[tuple[VerdictSource, tuple[bool, str]]]:
    structured_judgment = _parse_judgment(outcome.structured)
    if structured_judgment is not None:
        yield "structured", structured_judgment
    written_judgment = read_last_object(outcome.output, _parse_judgment)
    if written_judgment is not None:
        yield "json", written_judgment


def _parse_judgment(value: object) -> tuple[bool, str] | None:
    """Return pass and reason of *value* if it is an object with a boolean ``pass``."""
    if not isinstance(value, Mapping) or not isinstance(value.get("pass"), bool):
        return None
    reason = value.get("reason")
    return value["pass"], reason if isinstance(reason, str) else ""


def _last_lines(outcome: Outcome) -> str:
    """Return as many whole lines as fit from the end of a program's output."""
    text = (
        f"{outcome.output[-4 * EXIT_REASON_CHARS :]}\n{(outcome.error or '')[:EXIT_REASON_CHARS]}"
    )
    last_lines: list[str] = []
    chars_left = EXIT_REASON_CHARS
    for line in reversed([line.rstrip() for line in text.splitlines() if line.strip()]):
        if len(line) >= chars_left:
            break
        last_lines.append(line)
        chars_left -= len(line) + 1
    if not last_lines:
        return _cut(text.strip(), EXIT_REASON_CHARS)
    return _cut("\n".join(reversed(last_lines)), EXIT_REASON_CHARS)


def _cut(text: str, limit: int) -> str:
    # JSON can contain half a surrogate pair, which no UTF-8 file can store later.
    clean = text.strip()[:limit].encode("utf-8", "replace").decode("utf-8")
    return clean if len(text.strip()) <= limit else f"{clean[: limit - 1]}…"


def check_schema(schema: Mapping[str, Any], value: Any) -> str | None:
    """Return the first problem of *value* with *schema* in one line; None: it fits.

    *schema* has passed `ensure_schema`. References are never fetched; if a reference leads out
    of the schema, no value fits.

    >>> check_schema({"properties": {"pass": {"type": "boolean"}}}, {"pass": "yes"})
    "$.pass: 'yes' is not of type 'boolean'"
    """
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - a tenth of a second

    try:
        error = next(_validator(schema).iter_errors(value), None)
    except RecursionError:
        return "$: it nests too deeply to be checked"
    except Unresolvable as reference_error:
        return f"$: its schema refers to {_to_one_line(reference_error.ref)!r}, which is not in it"
    if error is None:
        return None
    # Most messages start with the repr of the whole value, and the problem comes after it.
    message, instance_text = error.message, repr(error.instance)
    if message.startswith(instance_text):
        value_text, message_rest = _as_json(error.instance), message.removeprefix(instance_text)
        if len(value_text) > _VALUE_CHARS:
            value_text = f"{value_text[: _VALUE_CHARS - 1]}…"
        if error.validator == "enum":
            message_rest = f" is not one of {_as_json(error.validator_value)}"
        message = f"{value_text}{message_rest}"
    return f"{error.json_path}: {_to_one_line(message)}"


def _as_json(value: Any) -> str:
    """Return *value* as JSON; text gets the quotes of this program's messages."""
    return repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def ensure_schema(schema: Mapping[str, Any], where: str) -> None:
    """Check that *schema* is a JSON Schema that can check any value.

    Raises:
        ConfigurationError: it is not a JSON Schema, has a reference that leads out of it
            (nothing is fetched while a step waits), or refers to itself endlessly.
    """
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415 - a tenth of a second

    if not isinstance(schema.get("$schema", ""), str):
        raise ConfigurationError("expected the URI of a draft", where=f"{where}.$schema")
    try:
        validator = _validator(schema)
        validator.check_schema(dict(schema))
        dangling_ref = next(_find_dangling_refs(schema), None)
        if dangling_ref is not None:
            raise ConfigurationError(
                f"$ref {_to_one_line(dangling_ref)!r} is not in the schema itself",
                where=where,
                hint="copy its definition into $defs; nothing is fetched",
            )
        # A schema that loops does so for any value, so one value is enough to notice.
        validator.is_valid(None)
    except SchemaError as error:
        place = error.json_path.removeprefix("$").lstrip(".")
        raise ConfigurationError(
            f"this is not a JSON Schema: {_to_one_line(error.message)}",
            where=f"{where}.{place}" if place else where,
        ) from error
    except RecursionError as error:
        message = "the schema refers to itself endlessly, or nests too deeply"
        raise ConfigurationError(message, where=where) from error


def _validator(schema: Mapping[str, Any]) -> Validator:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - a tenth of a second
    from jsonschema.validators import validator_for  # noqa: PLC0415 - same
    from referencing import Registry  # noqa: PLC0415 - same

    # This registry fetches nothing; the default one would use the network.
    return validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())


def _find_dangling_refs(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield each reference of *schema* that can't be resolved inside it."""
    from referencing import Registry  # noqa: PLC0415 - a tenth of a second
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - same
    from referencing.jsonschema import DRAFT202012, specification_with  # noqa: PLC0415 - same

    draft = specification_with(str(schema.get("$schema")), default=DRAFT202012)
    root = draft.create_resource(schema)
    stack = [(root, Registry().resolver_with_root(root))]
    while stack:
        part, resolver = stack.pop()
        contents = part.contents
        names = ("$ref", "$dynamicRef") if isinstance(contents, Mapping) else ()
        for reference in (contents[name] for name in names if name in contents):
            try:
                resolver.lookup(reference)
            except (Unresolvable, ValueError):
                yield reference
        stack += [(child, resolver.in_subresource(child)) for child in part.subresources()]


def _to_one_line(text: str) -> str:
    line = " ".join(text[: 4 * _PROBLEM_CHARS].split())
    return line if len(line) <= _PROBLEM_CHARS else f"{line[:_PROBLEM_CHARS]}…"
