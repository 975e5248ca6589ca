"""Creates the sinks from the options; a new kind is one line in `MAKERS`. Has the jsonl sink too.

Problems are found before anything runs: `problems` yields them for ``sequencer check``, and
`make_sinks` raises them with the same words. No host is contacted.

Not promised: anything about a file that another program rewrites or truncates meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from sequencer import extensions
from sequencer.errors import ConfigurationError, UnsafeFolder, UnsafePath
from sequencer.files.yamlfile import KeyPath, format_key_path
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.plugins.posting.options import ActivityOptions, SinkOptions, SinkPlace
from sequencer.plugins.posting.protocol import Post, Sink, Unreachable
from sequencer.plugins.posting.trackers import (
    API_URL,
    LINEAR_URL,
    GithubSink,
    LinearCommentSink,
    LinearSink,
)
from sequencer.plugins.posting.web import WebhookSink
from sequencer.store import folder as folders

Locate = Callable[[KeyPath], str]
DEFAULT_FILE = "activity.jsonl"
MAX_ISSUE = 2**53


def _make_jsonl_sink(name: str, options: SinkOptions, place: SinkPlace) -> Sink:
    return JsonlSink(name, jsonl_path(options, place))


def _make_webhook_sink(name: str, options: SinkOptions, place: SinkPlace) -> Sink:
    secret_headers = {
        header: place.environment[variable] for header, variable in options.headers_env.items()
    }
    secret = None if options.secret_env is None else place.environment[options.secret_env]
    return WebhookSink(name, options.url or "", {**options.headers, **secret_headers}, secret)


def _make_linear_sink(name: str, options: SinkOptions, place: SinkPlace) -> Sink:
    token = place.environment[options.token_variable]
    if options.from_request and not place.session:
        return LinearCommentSink(name, token, place.identifier, options.url or LINEAR_URL)
    session = place.session if options.from_request else options.agent_session_id
    session = session or place.environment[options.agent_session_id_env or ""]
    return LinearSink(name, token, session, options.url or LINEAR_URL)


def _make_github_sink(name: str, options: SinkOptions, place: SinkPlace) -> Sink:
    if options.from_request:
        issue = int(place.identifier.partition("#")[2])
    else:
        issue = options.issue or int(place.environment[options.issue_env or ""])
    token = place.environment[options.token_variable]
    return GithubSink(
        name,
        token=token,
        repository=options.repository or "",
        issue=issue,
        api_url=options.api_url or API_URL,
    )


MAKERS: Mapping[str, Callable[[str, SinkOptions, SinkPlace], Sink]] = {
    "jsonl": _make_jsonl_sink,
    "webhook": _make_webhook_sink,
    "linear": _make_linear_sink,
    "github": _make_github_sink,
}
"""Kind -> function that creates a sink."""


def _make_sink(name: str, options: SinkOptions, place: SinkPlace) -> Sink:
    if (builtin := MAKERS.get(options.kind)) is not None:
        return builtin(name, options, place)
    make = _find_maker(options.kind)
    sink: Sink = extensions.create(extensions.SINKS, options.kind, Sink, make, name, options, place)
    return sink


def _find_maker(kind: str) -> Callable[..., Any]:
    """Return the function of a package that creates sinks of *kind*.

    Raises:
        UnknownName: no package has this kind. ConfigurationError: the package is disabled, or
            can't be loaded.
    """
    make: Callable[..., Any] = extensions.require(extensions.SINKS, kind, "sink kind", known=MAKERS)
    return make


def make_sinks(
    options: ActivityOptions, place: SinkPlace, locate: Locate = format_key_path
) -> list[Sink]:
    """Return the sinks of *options*, in the order of the file; nothing is opened yet.

    *locate* returns where a key is written.

    Raises:
        ConfigurationError: a sink can't be created, see `problems`. So a run does not start if
            its results would not arrive.
    """
    for where, message in problems(options, place, locate):
        raise ConfigurationError(message, where=where)
    return [
        _make_sink(name, entry, place)
        for name, entry in options.sinks.items()
        if not entry.from_request or _is_own_issue(entry, place.identifier)
    ]


_GITHUB, _LINEAR = re.compile(r"([^#\s]+)#[1-9]\d{0,14}"), re.compile(r"[A-Za-z0-9]+-[1-9]\d{0,14}")


def _is_own_issue(options: SinkOptions, identifier: str) -> bool:
    """Return whether the issue *identifier* belongs to the sink's tracker and repository."""
    if options.kind == "linear":
        return _LINEAR.fullmatch(identifier) is not None
    match = _GITHUB.fullmatch(identifier)
    # The author of an issue's JSON must not choose the repository that gets the token.
    return match is not None and match[1].casefold() == (options.repository or "").casefold()


def problems(
    options: ActivityOptions, place: SinkPlace, locate: Locate = format_key_path
) -> Iterator[tuple[str, str]]:
    """Yield (place, problem) for each problem, such as an unset variable or an unsafe path."""
    for name, entry in options.sinks.items():
        path = ("activity", "sinks", name)
        if entry.kind not in MAKERS:
            try:
                _find_maker(entry.kind)
            except ConfigurationError as error:
                yield locate((*path, "kind")), error.in_one_line
        variables: dict[tuple[str, ...], str | None] = {
            ("token_env",): entry.token_variable,
            ("secret_env",): entry.secret_env,
            ("agent_session_id_env",): entry.agent_session_id_env,
            ("issue_env",): entry.issue_env,
            **{("headers_env", header): value for header, value in entry.headers_env.items()},
        }
        for keys, variable in variables.items():
            message = _find_variable_problem(
                variable, place.environment, is_issue=keys == ("issue_env",)
            )
            if message is not None:
                yield locate((*path, *keys)), message
        if entry.kind == "jsonl":
            try:
                jsonl_path(entry, place)
            except UnsafePath as error:
                yield locate((*path, "path")), error.message


def _find_variable_problem(
    variable: str | None, environment: Mapping[str, str], *, is_issue: bool
) -> str | None:
    if not variable:
        return None
    value = environment.get(variable, "")
    if not value.strip():
        return f"the variable {variable} is not set"
    if not (value.isascii() and value.isprintable()):
        # The value itself may be a secret.
        return f"the variable {variable} is not one printable line"
    if is_issue and not 0 < (parse_whole_number(value) or 0) < MAX_ISSUE:
        return f"the variable {variable} is not the number of an issue"
    return None


def jsonl_path(options: SinkOptions, place: SinkPlace) -> Path:
    """Return the file of a jsonl sink.

    Raises:
        UnsafePath: it is neither in the project nor in the run's folder, or may be a file of
            the run itself. A cloned project must not make this program write to any other file.
    """
    if options.path is None:
        return place.run_folder / DEFAULT_FILE
    path = place.project_dir / options.path
    if "\0" in options.path or path.suffix != ".jsonl" or path.name.startswith("journal"):
        raise UnsafePath(f"{options.path!r} must be called NAME.jsonl, and can't be a journal")
    # Links in folders are followed now; a link as the file itself is refused when it is opened.
    real_path = path.parent.resolve() / path.name
    roots = (place.project_dir.resolve(), place.run_folder.resolve())
    if not any(real_path.is_relative_to(root) for root in roots):
        message = f"{options.path!r} is neither in the project nor in the run's folder"
        raise UnsafePath(message)
    return real_path


class JsonlSink:
    """Appends each activity as a line; results are on disk when `post` returns."""

    kind: ClassVar[str] = "jsonl"
    max_chars: ClassVar[int] = 1_000_000
    takes_thoughts: ClassVar[bool] = True

    def __init__(self, name: str, path: Path) -> None:
        """Write to *path*; the first post creates the file and its folder."""
        self.name = name
        self.path = path

    def post(self, post: Post) -> None:
        """Append *post* as a line of JSON; never through a link, and only to a plain file.

        Raises:
            Unreachable: it can't be written.
        """
        text = json.dumps(post.document(), ensure_ascii=False)
        line = text.encode("utf-8", "replace") + b"\n"
        try:
            self._append(line, is_result=post.key is not None)
        except OSError as error:
            raise Unreachable(f"{self.path}: {error.strerror or error}") from error
        except UnsafeFolder as error:
            raise Unreachable(f"{self.path}: {error.message}") from error

    def _append(self, line: bytes, *, is_result: bool) -> None:
        # An agent may replace a folder by a link while it works, so open it safely each time.
        folder = folders.make_folder(self.path.parent)
        fd = folder.open(self.path.name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                message = "is not a regular file"
                raise OSError(message)
            # Several runs may share the file; the lock goes with the descriptor.
            fcntl.flock(fd, fcntl.LOCK_EX)
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                # A crash has left half a line: start a new one, so that this line is complete.
                line = b"\n" + line
            view = memoryview(line)
            while view:
                view = view[os.write(fd, view) :]
            if is_result:
                os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Do nothing: no descriptor stays open."""
