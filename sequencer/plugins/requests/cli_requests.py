"""A request from the command line: text or a tracker's JSON, labels, comments, files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import (
    AGENT,
    STDIN,
    complete_workflows,
    read_argument,
    read_text,
    with_options,
)
from sequencer.engine.logs import current_branch
from sequencer.errors import UnsafePath, UsageRefused
from sequencer.model.request import Request
from sequencer.plugins.requests.issues import (
    NO_LABELS,
    TrackerIssue,
    find_json,
    parse_issue,
    to_request,
)
from sequencer.project.project import Project
from sequencer.store.strictjson import parse_json

_HEADING = re.compile(r"^#{1,6}\s+")


def build_request(
    project: Path,
    hide: Callable[[str], str] = lambda text: text,
    notice: Callable[[str], None] = lambda _: None,
    *,
    text: str | None,
    file: Path | None,
    labels: tuple[str, ...] = (),
    comments: tuple[str, ...] = (),
    attachments: tuple[str, ...] = (),
) -> Request:
    """Return the request that the options describe; *hide* removes known secrets.

    JSON must be a GitHub or Linear issue; *notice* gets a line for each missing part of it.

    Raises:
        UsageRefused: there is no text, or there are two; a label or the text is not valid; or
            the text is JSON but not an issue.
        ConfigurationError: the file can't be read.
        UnsafePath: an attachment is not a file of the *project*.
    """
    text, where = _read_text(text, file)
    document = find_json(text)
    issue = _parse_prose(hide(text)) if document is None else _parse_issue(document, where)
    for lack in (lack for lack in issue.lacks if lack != NO_LABELS or not labels):
        notice(f"{where}: {lack}")
    return to_request(
        issue,
        hide,
        where,
        labels=labels,
        comments=comments,
        attachments=tuple(resolve_attachment(name, project) for name in attachments),
        repository=project.name,
        base_branch=current_branch(project) or "",
    )


def _parse_prose(text: str) -> TrackerIssue:
    """Return the request that a person wrote: its first line is the title."""
    lines = text.strip().splitlines()
    if not lines:
        raise UsageRefused("the request is empty", hint="write on its first line what to do")
    return TrackerIssue(title=_HEADING.sub("", lines[0].strip()), text="\n".join(lines[1:]).strip())


def _parse_issue(text: str, where: str) -> TrackerIssue:
    """Return the issue in *text*, which should be JSON.

    Raises:
        UsageRefused: it isn't JSON, or isn't an issue.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise UsageRefused(
            f"starts like JSON but can't be read: {error}",
            where=where,
            hint="if the text itself is the request, put a line of words before it",
        ) from None
    return parse_issue(value, where)


def _read_text(text: str | None, file: Path | None) -> tuple[str, str]:
    """Return the text and its origin."""
    if text is not None and file is not None:
        raise UsageRefused("give a text or --file, not both")
    if file is not None and str(file) != STDIN:
        return read_text(file), str(file)
    argument = STDIN if file is not None else text or ""
    return read_argument(argument), "standard input" if argument == STDIN else "the request"


def resolve_attachment(name: str, project: Path) -> str:
    """Return *name*, a path from the current folder, relative to the *project*.

    Raises:
        UnsafePath: it is not a regular file, or is outside the project, and the prompt would
            tell an agent to read it.
    """
    if not name or not name.isprintable():
        raise UnsafePath(
            f"attachment {name!a} has characters that can't be printed", where="--attach"
        )
    real_path = Path(os.path.realpath(name))
    root = Path(os.path.realpath(project))
    if not real_path.is_relative_to(root):
        raise UnsafePath(
            f"attachment {name!r} is outside the project ({root})",
            where="--attach",
            hint="copy it into the project",
        )
    if not real_path.is_file():
        raise UnsafePath(f"attachment {name!r} is not a regular file", where="--attach")
    return real_path.relative_to(root).as_posix()


REQUEST = with_options(
    click.option("--file", type=click.Path(path_type=Path), metavar="F",
                 help="Read the request from a file: text, or the JSON of an issue; "
                      "- is standard input."),
    click.option("--label", "labels", multiple=True, metavar="L",
                 help="A label for the request; repeatable."),
    click.option("--comment", "comments", multiple=True, metavar="TEXT",
                 help="A comment on the request; repeatable."),
    click.option("--attach", "attachments", multiple=True, metavar="PATH",
                 help="A file of the project to attach to the request; repeatable."),
    click.option("--procedure", metavar="P", shell_complete=complete_workflows,
                 help="Use this procedure, whatever the request says."),
    AGENT,
    click.option("--team/--no-team", "team", default=None,
                 help="Let a team work on it, or not, whatever its score is."),
    click.option("--team-size", type=click.IntRange(1, 64), metavar="N",
                 help="How many agents of the team work at the same time; implies --team."),
)  # fmt: skip
"""The options of `start` and `plan --request`."""


def read_request(
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
        UsageRefused: they give no request.
        Also raises the errors of `build_request`.
    """
    if text is None and file is None:
        raise UsageRefused(
            "there is no request", where=f"sequencer {verb}",
            hint="give the text, --file F, or - for standard input",
        )  # fmt: skip
    return build_request(
        project.settings.project_dir,
        project.redaction.hide_text,
        lambda lack: invocation.show_notices([lack]),
        text=text,
        file=file,
        **given,
    )
