"""From the options to the sinks; a new kind is one module and one line here.

What is missing is found before anything runs: `problems` for ``sequencer check``, the same
words as an error where a sink is made. No host is asked whether it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sequencer.activity.options import ActivityOptions, SinkOptions
from sequencer.activity.protocol import Sink
from sequencer.errors import ConfigurationError, UnsafePath

DEFAULT_FILE = "activity.jsonl"
MAX_ISSUE = 2**53


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run and its project are, and what the environment holds."""

    run_folder: Path
    project_dir: Path
    environment: Mapping[str, str]


def _jsonl(name: str, options: SinkOptions, place: Place) -> Sink:
    from sequencer.activity.jsonl import JsonlSink  # noqa: PLC0415 - one kind, one module

    return JsonlSink(name, jsonl_path(options, place))


def _webhook(name: str, options: SinkOptions, place: Place) -> Sink:
    from sequencer.activity.webhook import WebhookSink  # noqa: PLC0415 - same

    taken = {header: place.environment[name] for header, name in options.headers_env.items()}
    secret = None if options.secret_env is None else place.environment[options.secret_env]
    return WebhookSink(name, options.url or "", {**options.headers, **taken}, secret)


def _linear(name: str, options: SinkOptions, place: Place) -> Sink:
    from sequencer.activity.linear import URL, LinearSink  # noqa: PLC0415 - same

    session = options.agent_session_id or place.environment[options.agent_session_id_env or ""]
    token = place.environment[options.token_variable]
    return LinearSink(name, token, session, options.url or URL)


def _github(name: str, options: SinkOptions, place: Place) -> Sink:
    from sequencer.activity.github import API_URL, GithubSink  # noqa: PLC0415 - same

    issue = options.issue or int(place.environment[options.issue_env or ""])
    token = place.environment[options.token_variable]
    return GithubSink(
        name,
        token=token,
        repository=options.repository or "",
        issue=issue,
        api_url=options.api_url or API_URL,
    )


MAKERS: Mapping[str, Callable[[str, SinkOptions, Place], Sink]] = {
    "jsonl": _jsonl,
    "webhook": _webhook,
    "linear": _linear,
    "github": _github,
}
"""A sink by its kind's word."""


def make_sinks(options: ActivityOptions, place: Place) -> list[Sink]:
    """Return the sinks of *options*, in the order of the file; nothing is opened yet.

    Raises:
        ConfigurationError: one can't be made, see `problems`; a run whose results nobody
            would hear of is not begun.
    """
    for where, message in problems(options, place):
        raise ConfigurationError(message, where=where)
    return [MAKERS[entry.kind](name, entry, place) for name, entry in options.sinks.items()]


def problems(options: ActivityOptions, place: Place) -> Iterator[tuple[str, str]]:
    """Yield the key and what is wrong there: variables that are not set, a path outside."""
    for name, entry in options.sinks.items():
        where = f"activity.sinks.{name}"
        variables = {
            "token_env": entry.token_variable,
            "secret_env": entry.secret_env,
            "agent_session_id_env": entry.agent_session_id_env,
            "issue_env": entry.issue_env,
            **{f"headers_env.{header}": value for header, value in entry.headers_env.items()},
        }
        for key, variable in variables.items():
            message = _wrong_with(variable, place.environment, is_issue=key == "issue_env")
            if message is not None:
                yield f"{where}.{key}", message
        if entry.kind == "jsonl":
            try:
                jsonl_path(entry, place)
            except UnsafePath as error:
                yield f"{where}.path", error.message


def _wrong_with(
    variable: str | None, environment: Mapping[str, str], *, is_issue: bool
) -> str | None:
    if not variable:
        return None
    value = environment.get(variable, "")
    if not value.strip():
        return f"the variable {variable} is not set"
    if not (value.isascii() and value.isprintable()):
        # The value itself may be a secret.
        return f"the variable {variable} is no printable line"
    if is_issue and not (value.isdecimal() and 0 < int(value[:20]) < MAX_ISSUE):
        return f"the variable {variable} is no number of an issue"
    return None


def jsonl_path(options: SinkOptions, place: Place) -> Path:
    """Return the file of a jsonl sink.

    Raises:
        UnsafePath: it is neither in the project nor in the run's folder, or may be a file of
            the run itself; a project that was checked out must not name just any file.
    """
    if options.path is None:
        return place.run_folder / DEFAULT_FILE
    path = place.project_dir / options.path
    if "\0" in options.path or path.suffix != ".jsonl" or path.name.startswith("journal"):
        raise UnsafePath(f"{options.path!r} is not called like NAME.jsonl, nor may it be a journal")
    # Links are followed in the folders and refused in the file, when it is opened.
    real = path.parent.resolve() / path.name
    roots = (place.project_dir.resolve(), place.run_folder.resolve())
    if not any(real.is_relative_to(root) for root in roots):
        message = f"{options.path!r} is neither in the project nor in the run's folder"
        raise UnsafePath(message)
    return real
