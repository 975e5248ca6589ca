"""`--state KEY=VALUE`: what a run's state begins with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sequencer.executors.redaction import Redaction

MAX_CHARS = 100_000


def read_state(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """Return the values by key; what is YAML for a number, a list and so on is one.

    ``KEY=@FILE`` takes a file's text as it is.
    """
    from sequencer.documents import reader  # noqa: PLC0415 - yaml only where it is needed
    from sequencer.errors import ConfigurationError  # noqa: PLC0415

    found: dict[str, Any] = {}
    for given in values:
        key, separator, text = given.partition("=")
        if not separator or not key or key.startswith("_"):
            raise click.BadParameter(f"{given!r} is not KEY=VALUE", ctx=context, param=parameter)
        try:
            if text.startswith("@"):
                found[key] = _of_file(Path(text[1:]))
            else:
                found[key] = reader.parse_value(text, Path(f"--state {key}"))
        except ConfigurationError:
            # What is no YAML is a text, as people write it.
            found[key] = text
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"{text}: {error}", ctx=context, param=parameter) from None
    return found


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_CHARS + 1)
    if len(data) > MAX_CHARS:
        raise click.BadParameter(f"{path} has more than {MAX_CHARS} bytes")
    return data.decode("utf-8")


def hide_in(redaction: Redaction, value: Any) -> Any:
    """Return *value* without the secrets that *redaction* knows, in lists and maps as well."""
    if isinstance(value, str):
        return redaction.hide_text(value)
    if isinstance(value, dict):
        return {hide_in(redaction, key): hide_in(redaction, one) for key, one in value.items()}
    if isinstance(value, list):
        return [hide_in(redaction, one) for one in value]
    # A password of digits alone is a number by now.
    text = str(value)
    safe = redaction.hide_text(text)
    return value if safe == text else safe
