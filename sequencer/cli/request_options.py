"""How a request is given on the command line, by each verb that takes one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sequencer.cli import completion
from sequencer.errors import UsageRefused

if TYPE_CHECKING:
    from sequencer.assembly import Project
    from sequencer.cli.context import Invocation
    from sequencer.model.request import Request

TEXT = click.argument("text", required=False)
FILE = click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="Read the request from a file: words, or the JSON of an issue; - is standard input.",
)
LABEL = click.option(
    "--label", "labels", multiple=True, metavar="L", help="A label of the request; repeatable."
)
PROCEDURE = click.option(
    "--procedure",
    metavar="P",
    shell_complete=completion.workflows,
    help="As 'start' would be told.",
)
"""Of a verb that starts nothing."""


def request_from(
    invocation: Invocation,
    project: Project,
    verb: str,
    *,
    text: str | None,
    file: Path | None,
    **given: Any,
) -> Request:
    """Return the request that the options of *verb* describe.

    Raises:
        UsageRefused: there is none.
        Raises also what `requests.request_of` does.
    """
    from sequencer.cli.requests import Wanted, request_of  # noqa: PLC0415 - `--help` needs none

    if text is None and file is None:
        raise UsageRefused(
            "what is to be done?", where=f"sequencer {verb}",
            hint="give a text, --file F, or - for standard input",
        )  # fmt: skip
    wanted = Wanted(text=text, file=file, **given)
    return request_of(
        wanted,
        project.settings.project_dir,
        project.redaction.hide_text,
        lambda text: invocation.notices([text]),
    )
