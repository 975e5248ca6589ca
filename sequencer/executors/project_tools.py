"""The tools that a model of the Messages API gets: files of the project, and a shell.

Each tool is the schema of its input and one method. What a tool returns or raises goes
back to the model as text; only `PathRefused` counts as a refused call. Searches and
commands run under the process core, so that they end with the step. A path counts as inside
only after its links are resolved; version control, the run's own state and files that look like
secrets are never touched.

Not promised: protection against a process that changes links between the check and the use. A
tool that runs commands can do that, and can read anything anyway.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.errors import StateRefused
from sequencer.executors.attempt_lock import AttemptLock
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.launch import Launch
from sequencer.executors.path_search import PathPattern
from sequencer.executors.process import ProcessCore, ProcessEnd, report_leftovers
from sequencer.executors.protocol import Identity, Listener
from sequencer.executors.pump import OutputConsumer
from sequencer.executors.wall import Wall
from sequencer.frozen.base import Frozen, json_schema
from sequencer.frozen.fields import Field, ValidationError
from sequencer.store.folder import read_regular

MAX_ANSWER_CHARS = 30_000
_MAX_MATCHES = 200
_MAX_GREP_BYTES = 1024 * 1024
_SEARCH_TIMEOUT_S = 30.0
_WITH_LITTLE_MEMORY = 'ulimit -v 1048576 2>/dev/null; exec "$0" "$@"'
"""Runs a program with at most 1 GiB: a pattern with nested repeats would use up all memory."""
_NO_MATCH = 1
"""Exit code of grep."""


class ToolContext(Struct, frozen=True, kw_only=True):
    """The resources of tools during one attempt."""

    folder: ToolFolder
    core: ProcessCore
    cancellation: Cancellation
    identity: Identity
    environment: Mapping[str, str]
    """The environment of commands, without the API's key."""
    seconds_left: Callable[[], float | None]
    """Returns the seconds until the attempt's deadline; None: no limit."""
    lock: AttemptLock | None = None
    """The attempt's lock, for its processes."""
    wall: Wall = Wall.SCOPES
    _leftovers: list[ProcessEnd] = field(default_factory=list)

    def find_stop(self) -> str | None:
        """Return why a tool has to end now; None: it may continue."""
        if self.cancellation.reason is not None:
            return f"stopped: {self.cancellation.reason}"
        left_s = self.seconds_left()
        return "the step's time is up" if left_s is not None and left_s <= 0 else None

    def report_ended_processes(self, listener: Listener) -> int:
        """Return how many processes the commands left running, and report them to *listener*."""
        for end in self._leftovers:
            report_leftovers(end, listener)
        return sum(end.left_running for end in self._leftovers)

    def run(self, argv: Sequence[str], timeout_s: float, cap: int) -> tuple[ProcessEnd, _Capped]:
        """Run *argv* in the project's folder; store the first *cap* bytes of its output."""
        left_s = self.seconds_left()
        launch = Launch(
            identity=self.identity,
            argv=tuple(argv),
            environment=self.environment,
            cwd=self.folder.root,
            prompt=b"",
            timeout_s=timeout_s if left_s is None else min(timeout_s, max(left_s, 0.01)),
            lock=self.lock,
            wall=self.wall,
        )
        output = _Capped(cap)
        end = self.core.run(launch, output, self.cancellation)
        if end.left_running:
            self._leftovers.append(end)
        return end, output


class _Capped(OutputConsumer):
    """Stores the first bytes of both streams together and discards the rest."""

    def __init__(self, cap: int) -> None:
        self.data = bytearray()
        self.is_cut = False
        self._cap = cap

    def feed_stdout(self, data: bytes) -> bool:
        space = self._cap - len(self.data)
        self.is_cut = self.is_cut or len(data) > space
        self.data += data[:space]
        return True

    def feed_stderr(self, data: bytes) -> bool:
        return self.feed_stdout(data)


class Tool(Frozen):
    """Base class of the tools' inputs; the model reads the docstring of each."""

    @abstractmethod
    def run(self, context: ToolContext) -> str:
        """Run the tool and return the text for the model."""


class Read(Tool):
    """Read a text file of the project. Lines are numbered from 1."""

    path: str = Field(description="Relative to the project's folder")
    offset: int = Field(default=1, ge=1, description="First line")
    limit: int = Field(default=2000, ge=1, le=10_000, description="Number of lines")

    def run(self, context: ToolContext) -> str:
        """Return the lines with their numbers."""
        data = context.folder.read(self.path)
        if b"\x00" in data[:8192]:
            raise FileFailed(f"{self.path!r} is not a text file")
        lines = data.decode("utf-8", "replace").splitlines()
        chosen_lines = lines[self.offset - 1 : self.offset - 1 + self.limit]
        text = "\n".join(
            f"{number}\t{line}" for number, line in enumerate(chosen_lines, self.offset)
        )
        last_number = self.offset - 1 + len(chosen_lines)
        note = (
            f"\n(lines {self.offset} to {last_number} of {len(lines)})"
            if last_number < len(lines)
            else ""
        )
        return f"{text}{note}" if text else "(no lines)"


class Write(Tool):
    """Create a file of the project, or replace one as a whole."""

    path: str = Field(description="Relative to the project's folder")
    content: str

    def run(self, context: ToolContext) -> str:
        """Return what was done."""
        is_new = context.folder.write(self.path, self.content)
        return f"{'created' if is_new else 'replaced'} {self.path}"


class Edit(Tool):
    """Replace a text in a file of the project. The old text has to occur exactly once."""

    path: str = Field(description="Relative to the project's folder")
    old_text: str = Field(min_length=1)
    new_text: str
    replace_all: bool = Field(default=False, description="Replace every occurrence")

    def run(self, context: ToolContext) -> str:
        """Return what was done."""
        data = context.folder.read(self.path)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            # An edit would lose the bytes that can't be decoded.
            raise FileFailed(f"{self.path!r} is not UTF-8") from error
        count = text.count(self.old_text)
        if count == 0:
            raise FileFailed(f"old_text does not occur in {self.path!r}")
        if count > 1 and not self.replace_all:
            raise FileFailed(f"old_text occurs {count} times in {self.path!r}; give more of it")
        # Checked before the text is built: long replacements can need more memory than there is.
        grown_bytes = count * (len(_encode(self.new_text)) - len(_encode(self.old_text)))
        ensure_writable_size(self.path, len(data) + grown_bytes)
        context.folder.write(self.path, text.replace(self.old_text, self.new_text))
        return f"edited {self.path}: {count} replaced"


class Glob(Tool):
    """List files of the project whose path matches a pattern, for example src/**/*.py."""

    pattern: str = Field(min_length=1, max_length=500)

    def run(self, context: ToolContext) -> str:
        """Return the paths, one a line."""
        parts = PurePosixPath(self.pattern).parts
        if self.pattern.startswith("/") or ".." in parts:
            raise PathRefused(f"{self.pattern!r} leads outside the project's folder")
        try:
            pattern = PathPattern(self.pattern)
        except (ValueError, re.error) as error:
            raise FileFailed(f"{self.pattern!r} is not a pattern: {error}") from error
        ends = time.monotonic() + _SEARCH_TIMEOUT_S

        def check() -> None:
            if stop := context.find_stop():
                raise FileFailed(stop)
            if time.monotonic() > ends:
                raise FileFailed(f"the search took longer than {_SEARCH_TIMEOUT_S:g} s")

        folder = context.folder
        found_paths = _filter_allowed(folder, pattern.find_files(folder.root, folder.allows, check))
        paths = sorted(islice(found_paths, _MAX_MATCHES))
        note = f"\n(only the first {_MAX_MATCHES})" if len(paths) == _MAX_MATCHES else ""
        return ("\n".join(paths) or "(no match)") + note


class Grep(Tool):
    """Search the project's text files for an extended regular expression."""

    pattern: str = Field(min_length=1, max_length=1000)
    path: str = Field(default=".", description="File or folder to search")
    ignore_case: bool = False

    def run(self, context: ToolContext) -> str:
        """Return ``path:line:text``, one a line."""
        start = context.folder.resolve_path(self.path)
        # A program and not `re`: a hostile pattern could block this process for hours.
        argv = ["sh", "-c", _WITH_LITTLE_MEMORY]
        argv += ["grep", "-rnIEH", "--null", "--max-count=50", "--exclude-dir=.git"]
        argv += ["-i"] if self.ignore_case else []
        # With "./", so that a name of a file or folder can't be taken for an option.
        argv += ["-e", self.pattern, "--", f"./{context.folder.to_relative(start)}"]
        end, output = context.run(argv, _SEARCH_TIMEOUT_S, _MAX_GREP_BYTES)
        matches = list(islice(_format_matches(context.folder, output.data), _MAX_MATCHES))
        if not matches and end.exit_code != _NO_MATCH:
            reason = end.spawn_error or output.data.decode("utf-8", "replace")
            raise FileFailed(f"grep failed: {reason[:500] or end.ended_by}")
        note = f"\n(only the first {_MAX_MATCHES})" if len(matches) == _MAX_MATCHES else ""
        return ("\n".join(matches) or "(no match)") + note


class Bash(Tool):
    """Run a shell command in the project's folder and return what it prints."""

    command: str = Field(min_length=1, max_length=100_000)
    timeout_s: float = Field(default=120.0, gt=0, le=3600)

    def run(self, context: ToolContext) -> str:
        """Return the output and how the command ended."""
        end, output = context.run(["bash", "-c", self.command], self.timeout_s, MAX_ANSWER_CHARS)
        if end.spawn_error is not None:
            raise FileFailed(end.spawn_error)
        text = output.data.decode("utf-8", "replace")
        cut_note = "\n(output cut)" if output.is_cut else ""
        if end.ended_by is not None:
            return f"{text}{cut_note}\n(ended by us: {end.ended_by})"
        return f"{text}{cut_note}\n(exit code {end.exit_code})".lstrip("\n")


TOOLS: Mapping[str, type[Tool]] = {
    tool.__name__.lower(): tool for tool in (Read, Write, Edit, Glob, Grep, Bash)
}
"""Name for the model and in the configuration -> tool."""


class ToolAnswer(Struct, frozen=True):
    """The answer to the model for one call."""

    text: str
    is_error: bool = False
    is_refused: bool = False


def describe_tools(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the tools called *names* in the format of the Messages API."""
    return [
        {
            "name": name,
            "description": TOOLS[name].__doc__ or name,
            "input_schema": json_schema(TOOLS[name]),
        }
        for name in names
    ]


def call_tool(
    name: str, tool_input: object, names: Sequence[str], context: ToolContext
) -> ToolAnswer:
    """Run the tool *name* with *tool_input* from the model, if the tool is one of *names*.

    No tool starts once the step has to end. Every failure is in the answer; none is raised.
    """
    if (stop := context.find_stop()) is not None:
        return ToolAnswer(stop, is_error=True)
    answer = _run_tool(name, tool_input, names, context)
    if len(answer.text) > MAX_ANSWER_CHARS:
        note = f"\n(cut: {len(answer.text)} characters in all)"
        answer = replace(answer, text=f"{answer.text[:MAX_ANSWER_CHARS]}{note}")
    return answer


def _run_tool(
    name: str, tool_input: object, names: Sequence[str], context: ToolContext
) -> ToolAnswer:
    if name not in names:
        known_names = ", ".join(names) or "none"
        return ToolAnswer(
            f"there is no tool {name!r}; your tools: {known_names}",
            is_error=True,
            is_refused=name in TOOLS,
        )
    try:
        return ToolAnswer(TOOLS[name].model_validate(tool_input).run(context))
    except ValidationError as error:
        return ToolAnswer(f"wrong input: {error}", is_error=True)
    except PathRefused as refusal:
        return ToolAnswer(f"refused: {refusal}", is_error=True, is_refused=True)
    except FileFailed as failure:
        return ToolAnswer(str(failure), is_error=True)
    except MemoryError:
        # If it failed the attempt, the step would start, and cost money, again and again.
        return ToolAnswer("the call needs more memory than there is", is_error=True)


def _filter_allowed(folder: ToolFolder, paths: Iterable[Path]) -> Iterable[str]:
    return (folder.to_relative(path) for path in paths if path.is_file() and folder.allows(path))


def _format_matches(folder: ToolFolder, output: bytearray) -> Iterable[str]:
    # Many lines are from the same file, and each check costs several system calls.
    allows = cache(lambda name: folder.allows(folder.root / name))
    for line in output.decode("utf-8", "replace").splitlines():
        name, separator, match_text = line.partition("\x00")
        if separator and allows(name):
            yield f"{PurePosixPath(name).as_posix()}:{match_text[:500]}"


SECRETS = (".env", ".env.*", "*.pem", "*.key", ".netrc", ".pgpass", "id_rsa*", "id_ed25519*")
"""Names of files that hold keys, as shell patterns."""
VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})
MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_WRITE_BYTES = 1024 * 1024
_MAX_PATH_CHARS = 4096
_FRESH_MODE = 0o644


class PathRefused(Exception):
    """The path is outside what the agent may touch; reported as a refused tool call."""


class FileFailed(Exception):
    """The file can't be read or written; the agent gets the reason and may continue."""


class ToolFolder:
    """The files below *root*, except for the *forbidden* folders and the *secrets*."""

    def __init__(
        self, root: Path, forbidden: Sequence[Path] = (), secrets: Sequence[str] = SECRETS
    ) -> None:
        self.root = root.resolve()
        self._forbidden = tuple(path.resolve() for path in forbidden)
        self._secrets = tuple(pattern.casefold() for pattern in secrets)

    def resolve_path(self, name: str) -> Path:
        """Return the real path of *name*, which is relative to the project's folder.

        Raises:
            PathRefused: it leads outside, or to a file that tools never touch. An absolute path
                is allowed if it leads inside, because models often write them.
            FileFailed: it is too long.
        """
        if not name or "\x00" in name:
            raise PathRefused("give a path without NUL characters")
        if len(name) > _MAX_PATH_CHARS:
            # The system refuses a longer one too, but only after each of its parts.
            raise FileFailed(f"a path has at most {_MAX_PATH_CHARS} characters")
        try:
            real_path = (self.root / name).resolve()
        except (OSError, RuntimeError, UnicodeEncodeError) as error:
            raise PathRefused(f"{name!r} can't be resolved: {error}") from error
        reason = self._find_refusal(real_path)
        if reason:
            raise PathRefused(f"{name!r} {reason}")
        return real_path

    def allows(self, path: Path) -> bool:
        """Return whether *path* may be shown to the agent."""
        try:
            return self._find_refusal(path.resolve()) is None
        except (OSError, RuntimeError):
            return False

    def to_relative(self, path: Path) -> str:
        """Return *path* relative to the project's folder, for the agent."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else "?"

    def read(self, name: str) -> bytes:
        """Return the content of a regular file.

        Raises:
            PathRefused: see `resolve_path`.
            FileFailed: it is missing, not a regular file, or too large.
        """
        try:
            data = read_regular(self.resolve_path(name), max_bytes=MAX_FILE_BYTES)
        except OSError as error:
            raise FileFailed(f"{name!r} can't be read: {error.strerror or error}") from error
        except StateRefused as refusal:
            raise FileFailed(f"{name!r} {refusal.message}") from refusal
        if len(data) > MAX_FILE_BYTES:
            raise FileFailed(f"{name!r} has more than the {MAX_FILE_BYTES} bytes allowed")
        return data

    def write(self, name: str, content: str) -> bool:
        """Replace or create the file atomically; return whether it is new.

        Raises:
            PathRefused: see `resolve_path`.
            FileFailed: the content is too large, or the file system refused; the old file is
                unchanged.
        """
        path = self.resolve_path(name)
        data = _encode(content)
        ensure_writable_size(name, len(data))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = _read_mode(path)
            _replace(path, data, _FRESH_MODE if mode is None else mode)
        except OSError as error:
            raise FileFailed(f"{name!r} can't be written: {error.strerror or error}") from error
        return mode is None

    def _find_refusal(self, real_path: Path) -> str | None:
        if not real_path.is_relative_to(self.root):
            return "is outside the project's folder"
        # Case is ignored, because for some file systems .GIT is .git.
        parts = [part.casefold() for part in real_path.relative_to(self.root).parts]
        if VERSION_CONTROL.intersection(parts):
            return "belongs to version control"
        if any(real_path.is_relative_to(folder) for folder in self._forbidden):
            return "belongs to the run's own state"
        if any(fnmatchcase(part, pattern) for part in parts for pattern in self._secrets):
            return "looks like a secret"
        return None


def ensure_writable_size(name: str, size: int) -> None:
    """Check that *size* bytes may be written to the file *name*.

    Raises:
        FileFailed: they are too many.
    """
    if size > MAX_WRITE_BYTES:
        message = f"{name!r}: {size} bytes are more than the {MAX_WRITE_BYTES} allowed"
        raise FileFailed(message)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _read_mode(path: Path) -> int | None:
    """Return the permissions of a regular file, None if there is no file."""
    try:
        mode = path.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError("it is not a regular file")
    return stat.S_IMODE(mode)


def _replace(path: Path, data: bytes, mode: int) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
