"""Step logs: one file per attempt, named after its iteration and its step.

A log starts with lines that identify the attempt and the prompt as the agent got it. The agent's
output follows, as bytes, without secrets and up to a cap. An existing file is never opened for
writing again. A log that can't be written never makes a step fail. Not promised: that a log
survives a power loss, or that it is complete if the disk is full.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from msgspec import Struct

from sequencer.engine.attempt import Attempt
from sequencer.errors import UnsafePath
from sequencer.executors.protocol import Piece, StepRequest
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import slug
from sequencer.model.evidence import format_evidence
from sequencer.model.head import Head
from sequencer.model.outcome import ACCEPTED, Outcome, Usage, format_cost
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.store import folder as folders
from sequencer.store.folder import Folder
from sequencer.store.identity import utc_now
from sequencer.store.reading import ProgressEvidence, ProgressMark, iter_names

_LONGEST_SECRET = 64 * 1024
"""Longest key, in bytes, that is searched for in the output after the cap of a log."""
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
MAX_NEWEST = 256 * 1024
"""How many of an attempt's last bytes are in its log even if the log was capped."""
NO_BRANCH = "local"
MAX_LOOKS = 100
"""How many step logs are opened to find one of a run: mode async writes to the same folder."""
_LOG = re.compile(r"iter-.*\.log")
_FIRST_LINE_BYTES = 4096
_END_BYTES = 16 * 1024
"""The end of a log that has its last line, and the refused tool calls after it."""
MAX_SENT = 1024 * 1024
"""The most bytes of a prompt in a log."""
_QUOTE = b"#> "
_MAX_BLOCK = (MAX_SENT + 100) * (len(_QUOTE) + 1)
"""The most bytes of a prompt with its quote marks; all its lines may be empty."""
_SENT = re.compile(rb"# sent: (prompt|(?:added )?system prompt|router's prompt), (\d{1,9}) bytes\n")
_HEAD_LINES = 3
MAX_PROGRESS_LOGS = 8
"""How many of the newest step logs of each branch are evidence of the progress of a run."""
_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
GIT_KNOWN_S = 1.0
"""How long the location of the git folder is cached; HEAD is always read."""


def current_branch(project: Path) -> str | None:
    """Return the git branch that is checked out in *project*; None without git.

    It reads git's files: a git process would cost more than everything else that the sequencer
    does for a step. A detached HEAD is named by the first 12 digits of its commit.
    """
    git = git_folder(project)
    return None if git is None else read_branch(git)


def git_folder(project: Path) -> Path | None:
    """Return the folder that has git's HEAD of *project*; None without git."""
    folder = str(project)
    while True:
        git = os.path.join(folder, ".git")  # noqa: PTH118 (on every step's path)
        try:
            mode = os.stat(git).st_mode  # noqa: PTH116 (same)
        except OSError:
            mode = 0
        if stat.S_ISDIR(mode):
            return Path(git)
        if mode:
            # In a worktree or a submodule, `.git` is a file with the path of the folder.
            return _read_git_folder(Path(git))
        parent = os.path.dirname(folder)  # noqa: PTH120 (same)
        if parent == folder:
            return None
        folder = parent


def _read_git_folder(file: Path) -> Path | None:
    """Return the git folder that *file*, the ``.git`` of a worktree or submodule, points to."""
    line = _read_line(file)
    return None if line is None else file.parent / line.partition("gitdir:")[2].strip()


def _read_line(file: Path | str) -> str | None:
    """Return the one line of *file*; None: it can't be read, or is not a regular file."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, _FIRST_LINE_BYTES).decode("utf-8", "surrogateescape").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def read_branch(git: Path) -> str | None:
    """Return the branch that is checked out, according to the files in the folder *git*."""
    head = _read_line(f"{git}/HEAD")
    if head is None or not head.startswith("ref: "):
        # The result is shown to people, so it must not reveal any other content of the file.
        return None if head is None or not _OID.fullmatch(head) else head[:12]
    return head.removeprefix("ref: ").removeprefix("refs/heads/")


class SentText(Struct, frozen=True):
    """One of the texts that were sent to an attempt's agent."""

    name: str
    """``prompt``, ``system prompt``, ``added system prompt``, or ``router's prompt``."""
    data: bytes
    """Without secrets, and little more than `MAX_SENT` bytes."""


class SentTexts(Struct, frozen=True):
    """The texts that were sent to an attempt's agent, and where they are in its log."""

    texts: tuple[SentText, ...]
    start: int
    end: int


def read_sent_texts(fd: int) -> SentTexts | None:
    """Return the texts that the agent of the log *fd* got; None: the log does not say.

    Only the lines before the agent's first output are trusted. A router writes before the step's
    agent gets its prompt, so for such an attempt only the router's prompt is certain.
    """
    try:
        head = os.pread(fd, _FIRST_LINE_BYTES, 0)
        place = start = len(head) - len(head.split(b"\n", _HEAD_LINES)[-1])
        texts: list[SentText] = []
        while header := _SENT.match(os.pread(fd, _FIRST_LINE_BYTES, place)):
            size, place = min(int(header[2]), _MAX_BLOCK), place + header.end()
            data = os.pread(fd, size, place)
            if len(data) < size:
                return None
            place += size
            text = data.removesuffix(b"\n").removeprefix(_QUOTE).replace(b"\n" + _QUOTE, b"\n")
            texts.append(SentText(header[1].decode(), text))
            if not header[1].endswith(b"system prompt"):
                return SentTexts(tuple(texts), start, place)
    except OSError:
        pass
    return None


@lru_cache(maxsize=4)  # a cycle sends the same prompts again and again
def _format_sent_texts(
    redaction: Redaction,
    recipient: str,
    system: str | None,
    added_system_prompt: str | None,
    prompt: str,
) -> bytes:
    """Return the lines of a log about the texts that are sent to *recipient*, agent or router."""
    # The prompt is always there and always last: the agent's own output follows.
    prompt_title = "prompt" if recipient == "agent" else "router's prompt"
    blocks = []
    for name, text in (
        ("system prompt", system),
        ("added system prompt", added_system_prompt),
        (prompt_title, prompt),
    ):
        if text or name is prompt_title:
            data = redaction.hide((text or "").encode("utf-8", "replace"))
            if len(data) > MAX_SENT:
                data = data[:MAX_SENT] + b"\n(%d bytes more)" % (len(data) - MAX_SENT)
            lines = data and b"#> %b\n" % data.replace(b"\n", b"\n#> ")
            blocks.append(b"# sent: %b, %d bytes\n%b" % (name.encode(), len(lines), lines))
    return b"".join(blocks)


def steps_folder(logs_dir: Path, branch: str | None, run: str | None) -> Path:
    """Return the folder of a run's step logs on *branch*."""
    folder = logs_dir / (slug(branch) if branch else NO_BRANCH)
    return folder / "runs" / slug(run) / "steps" if run else folder / "steps"


def list_run_folders(logs_dir: Path, run: str | None, *, include_links: bool = False) -> list[Path]:
    """Return the folders that may have step logs of a run, one for each branch.

    With *include_links*, links are returned too: the caller refuses them when it opens them.

    Raises:
        UnsafeFolder: a part of the path is a link.
    """
    subfolder = Path("runs", slug(run), "steps") if run else Path("steps")
    try:
        entries = folders.open_folder(logs_dir).entries()
        branches = [
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False) or (include_links and entry.is_symlink())
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [logs_dir / branch / subfolder for branch in sorted(branches)]


def log_name(step_index: int, step: str, attempt: int) -> str:
    """Return the file name of a log.

    >>> log_name(11, "supervisor", 1), log_name(11, "supervisor", 2)
    ('iter-00012_supervisor.log', 'iter-00012_supervisor.2.log')
    """
    suffix = "" if attempt <= 1 else f".{attempt}"
    return f"iter-{step_index + 1:05d}_{slug(step)}{suffix}.log"


def read_log_token(path: Path) -> int | None:
    """Return the token of the attempt with the log at *path*; None: the log has none."""
    facts = _log_facts(path)
    return None if facts is None else facts[0]


def _log_facts(path: Path) -> tuple[int, bytes, bytes] | None:
    """Return (token, second line, end) of the log at *path*.

    None: it can't be read, or its step was never claimed.
    """
    try:
        fd = folders.open_file(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        size = os.fstat(fd).st_size
        first_line, _, rest = os.pread(fd, _FIRST_LINE_BYTES, 0).partition(b"\n")
        end = os.pread(fd, _END_BYTES, max(size - _END_BYTES, len(first_line)))
    except OSError:
        return None
    finally:
        os.close(fd)
    _, separator, token = first_line.rpartition(b" token ")
    number = parse_whole_number(token.decode("ascii", "replace"))
    if not separator or not number:
        return None
    return number, rest.partition(b"\n")[0], end


def build_progress_evidence(logs_dir: Path, run_folder: str | None) -> ProgressEvidence:
    """Return a function that yields the progress of a run according to its newest logs.

    *run_folder* is the slug of a named run; None for the default run. The function raises
    CorruptState if the permissions of a folder forbid reading it.
    """
    subfolder = Path("runs", run_folder, "steps") if run_folder else Path("steps")

    def progress(run_id: str) -> Iterator[ProgressMark]:
        for branch in list(iter_names(logs_dir)):
            folder = logs_dir / branch / subfolder
            # Several logs share an iteration: parallel steps, and the attempts at one step.
            newest_folders = heapq.nlargest(MAX_LOOKS, iter_names(folder), _iteration)
            logs = (
                (folder / name, facts)
                for name in newest_folders
                if (facts := _log_facts(folder / name))
            )
            run_logs = (log for log in logs if f" run {run_id} ".encode() in log[1][1])
            for path, (token, _, end) in islice(run_logs, MAX_PROGRESS_LOGS):
                yield ProgressMark(path, token=token, has_ended=b"\n# ended " in end)

    return progress


def find_later_logs(folders_of_logs: Iterable[Path], head: Head) -> Iterator[ProgressMark]:
    """Yield evidence that the next attempt of *head* has already been started.

    This reads one or two logs in each folder, and is cheaper than `build_progress_evidence`.
    """
    for folder in folders_of_logs:
        for number in range(head.attempt + 1, head.attempt + 1 + MAX_LOOKS):
            path = folder / log_name(head.step_index, head.expected_step, number)
            facts = _log_facts(path)
            if facts is not None and f" run {head.run_id} ".encode() in facts[1]:
                yield ProgressMark(path, token=facts[0])
            if facts is None or facts[0] > head.token:
                # Logs of attempts that were given back, or of an earlier pass, come first.
                break


def find_old_logs(folder: Path, before: float, keep: int = MAX_LOOKS) -> list[Path]:
    """Return the step logs in *folder* that were last written *before* a time (Unix).

    The newest *keep* are left out: they are evidence of progress.

    Raises:
        UnsafeFolder: a part of the path is a link.
    """
    names = sorted(filter(_LOG.fullmatch, folders.list_names(folder)), key=_iteration)
    if not names:
        return []
    fd, old_logs = folders.open_folder(folder), []
    for name in names[: max(len(names) - keep, 0)]:
        status = os.stat(name, dir_fd=fd.fd, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_mtime < before:
            old_logs.append(folder / name)
    return old_logs


def _iteration(name: str) -> int:
    return parse_whole_number(name.removeprefix("iter-").partition("_")[0]) or 0


class StepLogs:
    """Creates the step logs of one run."""

    def __init__(
        self,
        logs_dir: Path,
        project: Path,
        run: str | None = None,
        *,
        warn: Callable[[str], None],
        redaction: Redaction | None = None,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Write under *logs_dir*, in a folder for the branch that *project* has checked out.

        *run* is the name of the run; None: the default run. *warn* gets a message if a log can't
        be written. *redaction* hides secrets; *max_bytes* limits the output in each log.
        """
        self._logs_dir = logs_dir
        self._project = project
        self._run = run
        self._redaction = redaction or Redaction()
        self._max_bytes = max_bytes
        self._warn = warn
        self._git: Path | None = None
        """The folder with git's HEAD; None without git."""
        self._git_known_until = 0.0
        """When to look up that folder again, on the monotonic clock."""
        self._folders: dict[str | None, Path] = {}
        """Branch, or None without one -> the folder of its logs."""

    @property
    def folder(self) -> Path:
        """Return the folder of the next log; it depends on the branch that is checked out."""
        return self._find_folder()

    @property
    def folders(self) -> list[Path]:
        """Return the folders that may have logs of the run, of all branches.

        The folder of the next log is the first. An agent may have checked out another branch.
        """
        return list(dict.fromkeys((self.folder, *list_run_folders(self._logs_dir, self._run))))

    def find_last_log(self) -> Path | None:
        """Return the newest log of a claimed step in `folders`; None: there is none."""
        try:
            logs = [
                folder / name
                for folder in self.folders
                for name in folders.list_names(folder)
                if _LOG.fullmatch(name)
            ]
        except OSError:
            return None
        newest_logs = sorted(logs, key=lambda path: path.name, reverse=True)[:MAX_LOOKS]
        return next((path for path in newest_logs if _log_facts(path)), None)

    def _find_folder(self) -> Path:
        """Return the folder of the next log."""
        now = time.monotonic()
        if now >= self._git_known_until:
            self._git, self._git_known_until = git_folder(self._project), now + GIT_KNOWN_S
        branch = None if self._git is None else read_branch(self._git)
        if branch not in self._folders:
            self._folders[branch] = steps_folder(self._logs_dir, branch, self._run)
        return self._folders[branch]

    def open(self, attempt: Attempt) -> FileLog:
        """Create the log of *attempt*; an existing file is never overwritten.

        Raises:
            UnsafeFolder: a part of the path is a link; a log must not reach another file.
            UnsafePath: the path of the folder is not a folder.
        """
        folder, fd, claim = self._find_folder(), -1, attempt.claim
        number = claim.attempt
        try:
            fd, name, number = self._create(folders.make_folder(folder), attempt)
        except NotADirectoryError as error:
            raise UnsafePath(
                "is not a plain folder",
                where=str(error.filename),
                hint="move it away, or set logs_dir",
            ) from error
        except OSError as error:
            name = log_name(claim.step_index, attempt.step.name, number)
            self._warn(f"the step log {folder / name} can't be written: {error.strerror}")
        log = FileLog(fd, f"{folder}/{name}", self._redaction, self._max_bytes, self._warn)
        log.write_header(attempt, number)
        return log

    @staticmethod
    def _create(folder: Folder, attempt: Attempt) -> tuple[int, str, int]:
        """Create a log in *folder*; return its descriptor, its name, and the number in the name."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        claim, step = attempt.claim, attempt.prepared.step
        number = max(claim.attempt, 1)
        while True:
            name = log_name(claim.step_index, step.name, number)
            try:
                return folder.open(name, flags), name, number
            except FileExistsError:
                # The log of an earlier run, or of this run before it was rewound.
                number += 1


class FileLog:
    """One step log; see `engine.attempt.StepLog`."""

    def __init__(
        self,
        fd: int,
        path: str,
        redaction: Redaction,
        max_bytes: int,
        warn: Callable[[str], None],
    ) -> None:
        """Write to *fd*, or nowhere if it is negative."""
        self.path = path
        self._fd = fd
        self._redaction = redaction
        self._stream = redaction.start_stream()
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._dropped = 0
        self._newest = bytearray()
        """The end of the output after the cap, and somewhat more."""
        self._warn = warn

    @property
    def _most_newest(self) -> int:
        return min(MAX_NEWEST, self._max_bytes // 4)

    def write_header(self, attempt: Attempt, number: int) -> None:
        """Write the lines that identify the attempt; *number* is the one in the file's name.

        The attempt's own number may be lower after a rewind, or after a person's retry.
        """
        name, prepared_step, head = self._redaction.hide_name, attempt.prepared, attempt.head
        step, step_index = prepared_step.step, attempt.claim.step_index
        text = (
            f"# step {name(step.name)!a} · iteration {step_index + 1} · step_index "
            f"{step_index} · attempt {number} · token {attempt.token}\n"
            f"# workflow {name(head.workflow_name)!a} · run {head.run_id} · agent "
            f"{name(prepared_step.agent)!a} · prompt {name(step.prompt_name)!a}\n"
            f"# started {utc_now()}\n"
        )
        self._write_bytes(text.encode())

    def write_request(self, request: StepRequest, to: str) -> None:
        texts = (request.system_prompt, request.append_system_prompt, request.prompt)
        self._write_bytes(_format_sent_texts(self._redaction, to, *texts))

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        del kind  # the log keeps everything, in the order in which it came
        if self._left:
            self._write_capped(self._stream.feed(data))
        else:
            # Searching for secrets in output that is dropped would slow down the agent.
            self._leave_out(self._stream.finish() + data)

    def report_usage(self, usage: Usage) -> None:
        """Ignore *usage*: the last line of the log has the final figures."""

    def close(self, outcome: Outcome) -> None:
        if rest := self._stream.finish():
            self._write_capped(rest)
        if self._dropped:
            self._write_newest()
        usage = outcome.usage
        # Whether the run accepts the attempt is decided later, and is in its journal.
        parts = ["ended", utc_now(), f"{usage.seconds:.1f} s"]
        if outcome.status not in ACCEPTED:
            parts[0] += f" {outcome.status}"
        if usage.input_tokens or usage.cost_usd:
            parts.append(f"{usage.input_tokens} + {usage.output_tokens} tokens")
        if usage.cost_usd or usage.unpriced:
            parts.append(format_cost(usage))
        self._write_bytes(f"\n# {' · '.join(parts)}\n".encode())
        if outcome.evidence is not None and (words := format_evidence(outcome.evidence)):
            self._write_text(f"# shown: {words}\n")
        for denial in outcome.denials:
            self._write_text(f"# refused by the agent's permissions: {denial}\n")
        if outcome.error:
            self._write_text("".join(f"# {text}\n" for text in outcome.error.splitlines()))
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write_capped(self, data: bytes) -> None:
        if not data:
            return
        head, rest = data[: self._left], data[self._left :]
        self._left -= len(head)
        if head:
            self._write_bytes(head)
        if rest:
            # The stream may hold back the start of a secret that ends in `_newest`.
            self._leave_out(rest + self._stream.finish())

    def _leave_out(self, data: bytes) -> None:
        """Keep the end of *data* for the end of the log; the first time, say so in the log."""
        if not self._dropped and data:
            # A person who follows the log must not think that the agent writes nothing.
            self._write_text(
                f"\n# log capped at {self._max_bytes} bytes: the step continues, "
                "and its newest lines are added when it ends\n"
            )
        self._dropped += len(data)
        self._newest += data
        # More than is shown: a secret of several lines may start before that.
        max_bytes = self._most_newest + _LONGEST_SECRET
        if len(self._newest) > 2 * max_bytes:
            del self._newest[:-max_bytes]

    def _write_newest(self) -> None:
        """Write the last whole lines of the dropped output, and how many bytes are missing."""
        redacted_data = self._redaction.hide(bytes(self._newest))
        # The first line may be incomplete, and contain the second half of a secret.
        newest_data = (
            redacted_data[-self._most_newest :].partition(b"\n")[2] if self._most_newest else b""
        )
        self._write_text(
            f"\n# {max(self._dropped - len(newest_data), 0)} bytes are left out here\n"
        )
        self._write_bytes(newest_data)

    def _write_text(self, text: str) -> None:
        self._write_bytes(self._redaction.hide(text.encode("utf-8", "backslashreplace")))

    def _write_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._fd >= 0:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                self._warn(f"the step log {self.path} ends early: {error.strerror}")
                os.close(self._fd)
                self._fd = -1
