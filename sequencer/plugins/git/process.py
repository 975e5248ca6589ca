"""Runs git processes: with a clean environment, no prompts, and a time limit.

Every git process of the program starts here, and is killed with all its children. Hooks, fsmonitor,
pagers, editors and submodules are always off. From the repository's own configuration, only allowed
settings may run a program or send data elsewhere (see `own_settings`). A process that only reads
never contacts a remote.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType

from msgspec import Struct

from sequencer.errors import ConfigurationError
from sequencer.plugins.git.own_settings import NO_TRANSPORT, TRANSPORTS, SettingsGuard
from sequencer.plugins.git.state.locks import find_own_lock
from sequencer.project.store_requests import RepositoryInspector

SLICE_S = 0.2
"""How often a waiting process checks for the end of git and for a stop."""
LATE_S = 0.5
"""How long the pipes are still read after git's end, if a child of it holds them open."""


def is_never_stopped() -> bool:
    """Return False: there is no request to stop."""
    return False


def start_uninterrupted(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Return the process that *start* starts; Ctrl-C waits until then, and kills the process.

    Without the delay, Ctrl-C during the start would leave a process that no one ends.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return start()
    frames: list[FrameType | None] = []
    process = None
    try:
        signal.signal(signal.SIGINT, lambda _, frame: frames.append(frame))
        try:
            process = start()
        finally:
            signal.signal(signal.SIGINT, handler)
            if frames:
                handler(signal.SIGINT, frames[0])
    except BaseException:
        if process is not None:
            kill_process(process)
        raise
    return process


class GitProcess(Struct):
    """A git process that is killed at its time limit."""

    process: subprocess.Popen[bytes]
    argv: Sequence[str]
    ends: float
    """Its time limit, on the monotonic clock."""
    is_stopped: Callable[[], bool] = is_never_stopped
    """Whether the caller should stop; then the process gets at most *stopped_s* more."""
    stopped_s: float = 0.0
    is_cut: bool = False

    def left_s(self) -> float:
        """Return the seconds that are left; fewer once the caller should stop."""
        moment = time.monotonic()
        if not self.is_cut and self.is_stopped():
            self.is_cut, self.ends = True, min(self.ends, moment + self.stopped_s)
        return self.ends - moment

    def wait_for_result(self, stdin: bytes, accepts: Sequence[int]) -> Done:
        """Wait for the end of the process; return its exit code and output.

        Raises:
            GitFailed: its exit code is not in *accepts*, or it timed out.
        """
        try:
            stdout, stderr = self._read_output(stdin)
        except subprocess.TimeoutExpired:
            kill_process(self.process)
            raise GitFailed(self.argv, None, "") from None
        except BaseException:
            kill_process(self.process)
            raise
        message, code = stderr.decode("utf-8", "replace"), self.process.returncode
        if code not in accepts:
            raise GitFailed(self.argv, code, message)
        return Done(code, stdout, message)

    def _read_output(self, stdin: bytes) -> tuple[bytes, bytes]:
        """Return what the process wrote to stdout and stderr until it exited.

        Does not wait until the pipes are closed: the process that ssh keeps for the next
        connection may hold them open for minutes.
        """
        if stdin:
            # Only local commands get input, and they leave no child processes.
            return self.process.communicate(stdin, timeout=self.left_s())
        while (left_s := self.left_s()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.communicate(timeout=min(left_s, SLICE_S))
            if self.process.poll() is None:
                continue
            try:
                return self.process.communicate(timeout=LATE_S)
            except subprocess.TimeoutExpired as late:
                _close_pipes(self.process)
                # The type hints are wrong here: both are bytes or None.
                return bytes(late.stdout or b""), bytes(late.stderr or b"")
        raise subprocess.TimeoutExpired(self.argv, left_s)


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* and all its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    _close_pipes(process)
    process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


_SETTINGS = (
    "safe.bareRepository=explicit",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "submodule.recurse=false",
    "log.showSignature=false",
    "merge.verifySignatures=false",
    "commit.gpgSign=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "push.followTags=false",
    "push.recurseSubmodules=no",
    "push.gpgSign=false",
    "fetch.recurseSubmodules=no",
    "credential.interactive=false",
)
"""Turns off settings of a user or a repository that must have no effect here."""
_FLAGS = {
    # If git looked into a submodule, that submodule's configuration would apply too.
    "status": ("--ignore-submodules=dirty",),
    "diff": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty"),
}
"""Flags that a git command always gets."""
_LISTED = ("config", "--list", "-z", "--show-scope", "--show-origin", "--includes")
"""The first command in a repository; it shows which settings have to be turned off."""
_REPOSITORY = re.compile(
    "GIT_(DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|NAMESPACE|OBJECT_DIRECTORY|CONFIG"
    "|ALTERNATE_OBJECT_DIRECTORIES|PREFIX|QUARANTINE_PATH|TRACE.*|EDITOR|SEQUENCE_EDITOR)"
)
"""Variables that would make git use other files, or print more than it was asked for."""
_LOCAL_TIMEOUT_S = 60.0
DENIED = re.compile(
    r"Authentication failed|could not read (Username|Password)|Permission denied"
    r"|terminal prompts disabled|Invalid username or password|error: 40[13]"
    r"|Host key verification failed|Access denied|not authorized"
    r"|Permission to \S+ denied|marked as read only|not allowed to (push|upload)",
    re.IGNORECASE,
)
_BEFORE = re.compile(
    r"^(fatal|ERROR): (Could not read from remote repository|unable to access|remote error:"
    r"|Authentication failed|could not read (Username|Password))",
    re.MULTILINE,
)
"""Git's messages if the remote ended the connection before it listed its refs."""
_STARTED = re.compile(r"RPC failed|hung up unexpectedly|unexpected disconnect")
LOCK_S = 3.0
"""A lock on one of the program's refs that is older is from a git that was killed."""
_NETWORK = ("push", "fetch", "ls-remote")
STOPPED_S = 7.0
"""How much longer a command may contact a remote once the caller should stop."""
HANGING_S = 1.0
"""The same for later commands, if the remote did not answer in `STOPPED_S`."""
_RACING = ("fetch", "fast-import")
_RACE_ATTEMPTS = 8
"""How many times a command is tried if another process of this clone is in the way."""
_RACE_PAUSE_S = 0.05
_LOCAL_RACE = re.compile(
    r"cannot lock ref|unable to update local ref|\.lock': File exists",
)
"""Git's messages if two processes of a clone change the same ref at the same time."""
UNWRITABLE = re.compile(
    r"cannot lock ref|unable to update local ref|unable to create temporary file"
    r"|No space left on device|Disk quota exceeded|Read-only file system|unable to write"
    r"|insufficient permission for adding an object|\.lock': ",
)
FULL = {
    errno.ENOSPC: re.compile("No space left on device"),
    errno.EDQUOT: re.compile("Disk quota exceeded"),
}
"""Git's messages if a disk of this machine is full."""
INCOMPLETE = re.compile(
    r"unresolved deltas|did not send all necessary objects"
    r"|(missing|bad|unable to read) (blob|tree|commit|object)|unable to read sha1 file"
    r"|could not (read|parse) (commit )?[0-9a-f]{40}|object file .* is empty"
    r"|loose object .* is corrupt|unable to unpack [0-9a-f]{40}",
    re.IGNORECASE,
)
"""Git's messages if an object that its refs need is missing or damaged in this repository."""
_REMOTE_ERROR = re.compile(r"^(?:fatal|error): remote error:", re.MULTILINE)
"""Git's words before a text of the remote, which may have several lines."""
_VERSION = re.compile(r"git version (\d{1,9})\.(\d{1,9})")
NOWHERE = re.compile(
    r"does not appear to be a git repository|[Rr]epository.* not found|error: 404"
    r"|No such file or directory"
)


class GitFailed(Exception):
    """A git process failed; never leaves this package."""

    def __init__(self, argv: Sequence[str], code: int | None, stderr: str) -> None:
        """Keep the command, its exit code (None: killed at its time limit) and its stderr."""
        self.argv = tuple(argv)
        self.code = code
        self.stderr = stderr.strip()
        super().__init__(f"git {argv[0]} ended with {code}: {self.reason}")
        if number := next((key for key in FULL if self.has_local_message(FULL[key])), 0):
            # Git reports no error number, but `to_machine_busy` needs one.
            self.__cause__ = OSError(number, os.strerror(number))

    @property
    def reason(self) -> str:
        """Return git's error message, in one line for people."""
        if self.code is None:
            return "no answer in time"
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        errors = [
            line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))
        ]
        # First ssh's own line: git only says that ssh failed, not why.
        denial_lines = [line for line in lines if DENIED.search(line)]
        reason = next(iter(denial_lines or errors or lines), f"exit code {self.code}")
        return re.sub(r"^(fatal|error): ", "", reason).strip()

    def has_message(self, pattern: re.Pattern[str]) -> bool:
        """Return whether git's stderr matches *pattern*, for example `DENIED` or `NOWHERE`.

        The text may be the remote's: use `has_local_message` for facts about this machine.
        """
        return pattern.search(self.stderr) is not None

    @property
    def local_stderr(self) -> str:
        """Return stderr without the text of the remote; see `drop_remote_text`."""
        return drop_remote_text(self.stderr)

    def has_local_message(self, pattern: re.Pattern[str]) -> bool:
        """Return whether git itself says what *pattern* matches, for example `INCOMPLETE`."""
        return pattern.search(self.local_stderr) is not None

    @property
    def is_turned_away(self) -> bool:
        """Return whether the remote denied access before anything was sent."""
        return (
            self.has_message(DENIED)
            and self.has_message(_BEFORE)
            and not self.has_message(_STARTED)
        )

    @property
    def is_race(self) -> bool:
        """Return whether another process of this clone was in the way, so a retry may work."""
        return self.argv[0] in _RACING and self.has_local_message(_LOCAL_RACE)


def drop_remote_text(stderr: str) -> str:
    """Return git's *stderr* without the text that git marks as the remote's.

    What a remote sends without a mark, for example by ssh itself, can't be told from git's own
    words. So a path in the result does not permit touching a file.
    """
    local_text, *_ = _REMOTE_ERROR.split(stderr, maxsplit=1)
    # Split where git does: `splitlines` would also split at other characters of the remote's text.
    return "\n".join(line for line in local_text.split("\n") if not line.startswith("remote:"))


class Done(Struct, frozen=True):
    """The result of a git process."""

    code: int
    stdout: bytes
    stderr: str


class Git:
    """Runs git in one repository."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        timeout_s: float = _LOCAL_TIMEOUT_S,
        allowed: Mapping[str, str] | None = None,
        git_dir: Path | None = None,
        work_tree: Path | None = None,
        is_stopped: Callable[[], bool] = is_never_stopped,
    ) -> None:
        """Run git in *folder*; *timeout_s* is the time limit of commands that contact a remote.

        Local commands have a minute, or *timeout_s* if that is longer. *allowed* are the
        repository's own settings that may act, as `acting_settings` returns them; None: only
        read, and contact no remote. *git_dir* names the repository so that git does not search
        for it, which a bare one needs; its files are then in *work_tree*. Once *is_stopped*, no
        command waits long for a remote.
        """
        self.folder = folder
        self.allowed = allowed
        self.timeout_s = timeout_s
        self.started = 0
        """How many processes were started, for measurements."""
        self._is_stopped = is_stopped
        self._hangs = False
        """Whether the remote did not answer in `STOPPED_S` after a request to stop."""
        self._environment = _clean_environment(os.environ if environment is None else environment)
        self._environment["GIT_ALLOW_PROTOCOL"] = NO_TRANSPORT
        if allowed is not None:
            self._environment["GIT_ALLOW_PROTOCOL"] = ":".join(TRANSPORTS)
        if git_dir is not None:
            self._environment["GIT_DIR"] = str(git_dir)
        if work_tree is not None:
            self._environment["GIT_WORK_TREE"] = str(work_tree)
        self._settings_guard = SettingsGuard(
            folder, self._environment, allowed, git_dir, self._list_settings
        )

    def with_folder(
        self, folder: Path, *, timeout_s: float = _LOCAL_TIMEOUT_S, git_dir: Path | None = None
    ) -> Git:
        """Return a `Git` with the same rules for *folder*, the work tree of *git_dir* if given."""
        return Git(
            folder,
            self._environment,
            timeout_s=timeout_s,
            allowed=self.allowed,
            git_dir=git_dir,
            work_tree=None if git_dir is None else folder,
        )

    def run(
        self,
        *argv: str,
        stdin: bytes = b"",
        extra: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        accepts: Sequence[int] = (0,),
        timeout_s: float | None = None,
    ) -> Done:
        """Run ``git ARGV`` and return how it ended.

        *extra* is added to the environment; *settings* are git settings as ``key=value``;
        *timeout_s* applies if it is less than the usual limit.

        Raises:
            GitFailed: its exit code is not in *accepts*, or it timed out.
            ConfigurationError: git is not installed.
        """
        is_remote = argv[0] in _NETWORK
        limit_s = self.timeout_s if is_remote else max(self.timeout_s, _LOCAL_TIMEOUT_S)
        limit_s = limit_s if timeout_s is None else min(timeout_s, limit_s)

        def once() -> Done:
            process = self.start(*argv, extra=extra, settings=settings)
            ends = time.monotonic() + limit_s
            if not is_remote:
                return GitProcess(process, argv, ends).wait_for_result(stdin, accepts)
            stopped_s = HANGING_S if self._hangs else STOPPED_S
            running = GitProcess(process, argv, ends, self._is_stopped, stopped_s)
            try:
                return running.wait_for_result(stdin, accepts)
            finally:
                self._hangs = running.is_cut and running.left_s() <= 0

        for attempt in range(_RACE_ATTEMPTS - 1):
            try:
                return once()
            except GitFailed as failed:
                if self._remove_stale_lock(failed.local_stderr):
                    continue
                if not failed.is_race:
                    raise
            time.sleep(random.uniform(0, _RACE_PAUSE_S * 2**attempt))  # noqa: S311 - no secret
        return once()

    def _remove_stale_lock(self, stderr: str) -> bool:
        """Remove the lock in *stderr* if it is on one of the program's refs and is abandoned.

        Returns whether there was such a lock, so that git can be tried again.
        """
        if "/refs/worktree/sequencer" not in stderr:
            return False
        try:
            git_dir = Path(self.read_output("rev-parse", "--absolute-git-dir"))
        except GitFailed:
            return False
        path = find_own_lock(stderr, git_dir)
        if path is None:
            return False
        with contextlib.suppress(OSError):
            while 0.0 <= (left_s := path.stat().st_mtime + LOCK_S - time.time()) <= LOCK_S:
                time.sleep(min(left_s, 0.05) + 0.01)
            path.unlink()
        return True

    def start(
        self,
        *argv: str,
        extra: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Start ``git ARGV`` with three pipes, in a new session, so that Ctrl-C does not reach it.

        Raises:
            GitFailed: the repository can't be read, or a `Git` that only reads needs a remote.
            ConfigurationError: git is not installed, or the remote is not allowed.
        """
        argv = (argv[0], *_FLAGS.get(argv[0], ()), *argv[1:])
        variables = {**self._environment, **self._variables(argv), **(extra or {})}
        options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
        self.started += 1
        try:
            return start_uninterrupted(
                lambda: subprocess.Popen(  # noqa: S603 - an argv list, and git is looked up on PATH
                    ["git", "--no-pager", *options, *argv],  # noqa: S607
                    cwd=self.folder,
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    start_new_session=True,
                )
            )
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise ConfigurationError("is not a folder", where=str(self.folder)) from error
            raise ConfigurationError(
                "git is not installed, but this run is kept in git",
                hint="install git, or set store.kind to file",
            ) from error

    def acting_settings(self, remote: str | None = None) -> Mapping[str, str]:
        """Return the repository's settings that act; see the function of this name."""
        return self._settings_guard.acting_settings(remote)

    def _variables(self, argv: tuple[str, ...]) -> dict[str, str]:
        """Return the variables that turn off settings that are not allowed; see `start`."""
        if argv[0] == "version" or argv == _LISTED:
            return {}
        is_remote = argv[0] in _NETWORK and "--get-url" not in argv
        if is_remote and self.allowed is None:
            raise GitFailed(argv, 128, "fatal: a process that only looks does not ask the remote")
        try:
            return self._settings_guard.build_variables(
                argv[argv.index("--") + 1] if is_remote else None
            )
        except OSError as error:
            raise GitFailed(argv, 128, f"fatal: {error}") from error

    def _list_settings(self, variables: Mapping[str, str]) -> bytes:
        """Return all settings that git would use in the repository, for `own_settings`."""
        result = self.run(*_LISTED, extra=variables, accepts=(0, 128))
        return b"" if result.code else result.stdout

    def check_version(self, needed: tuple[int, int]) -> ConfigurationError | None:
        """Return why git can't be used: it is missing, does not run, or is older than *needed*."""
        try:
            version = self.read_output("version")
        except ConfigurationError as error:
            return error
        except GitFailed as failed:
            message = f"git does not run: {failed.reason}"
            return ConfigurationError(message, hint="try 'git version'")
        match = _VERSION.match(version)
        if match is None or (int(match[1]), int(match[2])) >= needed:
            return None
        hint = f"install git {'.'.join(map(str, needed))} or newer"
        return ConfigurationError(f"{version} is too old", hint=hint)

    def read_output(self, *argv: str, accepts: Sequence[int] = (0,)) -> str:
        """Return the output of ``git ARGV`` without surrounding white space; see `run`."""
        return self.run(*argv, accepts=accepts).stdout.decode("utf-8", "surrogateescape").strip()


def acting_settings(
    repository: Path, remote: str | None = None, environment: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Return the settings of *repository* itself that run programs or send data elsewhere.

    Key -> value; several values of a key are separate lines. Remotes' settings are included only
    for *remote* and for remotes from which a partial clone fetches by itself. Empty if there is no
    repository.
    """
    return Git(repository, environment).acting_settings(remote)


def find_removed_files(names: Collection[str], tree: Path, project: Path) -> list[str]:
    """Return the *names* that were removed from the work tree *tree* after git put them there.

    These are missing files that *project* tracks now and that a commit of the tree's branch had.
    The paths are relative to both folders.

    Raises:
        GitFailed: git failed.
    """
    variables = {"GIT_LITERAL_PATHSPECS": "1"}
    output = Git(project).run("ls-files", "-z", "--", *names, extra=variables).stdout
    tracked_paths = {*output.decode("utf-8", "surrogateescape").split("\0")}
    tree_git = Git(tree)
    return [
        name
        for name in names
        if name in tracked_paths
        and not os.path.lexists(tree / name)
        and tree_git.run("rev-list", "-1", "HEAD", "--", name, extra=variables).stdout.strip()
    ]


def _clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    variables = {
        name: text for name, text in environment.items() if not _REPOSITORY.fullmatch(name)
    }
    variables.update(
        LC_ALL="C",
        GIT_TERMINAL_PROMPT="0",
        GIT_OPTIONAL_LOCKS="0",
        GIT_EDITOR=":",
        GIT_SEQUENCE_EDITOR=":",
        GIT_ASKPASS=variables.get("GIT_ASKPASS", "true"),
        SSH_ASKPASS_REQUIRE="never",
        GCM_INTERACTIVE="never",
    )
    # Nothing for ssh itself: it asks on the terminal, and in a new session it has none.
    return variables


INSPECTOR = RepositoryInspector(acting_settings, find_removed_files)
"""The functions by which trust inspects the repository of a project."""
