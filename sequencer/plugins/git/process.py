"""One git process: with a clean environment, no questions, a time limit, and killed whole.

Every git process of the program starts here. Hooks, fsmonitor, pagers, editors and submodules
have no part in it, whoever asks for them; of the repository's own configuration only what is
allowed may run a program or send something elsewhere (see `own_settings`). Whoever only looks
reaches no remote.
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
from sequencer.plugins.git.own_settings import NO_TRANSPORT, TRANSPORTS, SettingsKeeper
from sequencer.project.store_requests import RepositoryInspector

SLICE_S = 0.2
"""How long nobody looks whether a process has ended or is not waited for any more."""
LATE_S = 0.5
"""How long after a process its pipes are read, if a child of it still holds them open."""


def never() -> bool:
    """Return that nobody has been told to stop."""
    return False


def unbroken(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Return what *start* starts; Ctrl-C comes when that is known, and ends it with the rest.

    In the middle of a start it would leave a process behind that nobody knows.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return start()
    came: list[FrameType | None] = []
    process = None
    try:
        signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
        try:
            process = start()
        finally:
            signal.signal(signal.SIGINT, handler)
            if came:
                handler(signal.SIGINT, came[0])
    except BaseException:
        if process is not None:
            end(process)
        raise
    return process


class GitProcess(Struct):
    """A process that is waited for, and killed when its time is over."""

    process: subprocess.Popen[bytes]
    argv: Sequence[str]
    ends: float
    """On the monotonic clock."""
    stopped: Callable[[], bool] = never
    """Whether it has been told to stop; then it has *stopped_s* at most."""
    stopped_s: float = 0.0
    is_cut: bool = False

    def left_s(self) -> float:
        """Return how many seconds are left; less once it has been told to stop."""
        now = time.monotonic()
        if not self.is_cut and self.stopped():
            self.is_cut, self.ends = True, min(self.ends, now + self.stopped_s)
        return self.ends - now

    def done(self, stdin: bytes, accepts: Sequence[int]) -> Done:
        """Return how it has ended.

        Raises:
            GitFailed: its exit code is not in *accepts*, or its time was over.
        """
        try:
            stdout, stderr = self._answer(stdin)
        except subprocess.TimeoutExpired:
            end(self.process)
            raise GitFailed(self.argv, None, "") from None
        except BaseException:
            end(self.process)
            raise
        told, code = stderr.decode("utf-8", "replace"), self.process.returncode
        if code not in accepts:
            raise GitFailed(self.argv, code, told)
        return Done(code, stdout, told)

    def _answer(self, stdin: bytes) -> tuple[bytes, bytes]:
        """Return what it has printed until it ended, or closed both pipes and ended.

        Not until the pipes are closed: what ssh leaves behind for the next connection may hold
        them for minutes.
        """
        if stdin:
            # Only what works here is given something, and leaves nobody behind.
            return self.process.communicate(stdin, timeout=self.left_s())
        while (left := self.left_s()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.communicate(timeout=min(left, SLICE_S))
            if self.process.poll() is None:
                continue
            try:
                return self.process.communicate(timeout=LATE_S)
            except subprocess.TimeoutExpired as late:
                _close_pipes(self.process)
                # Both are bytes or nothing, whatever the type says.
                return bytes(late.stdout or b""), bytes(late.stderr or b"")
        raise subprocess.TimeoutExpired(self.argv, left)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill *process* with everything that it has started."""
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
"""What a user or a repository may have configured that must not happen beside a turn."""
_FLAGS = {
    # A submodule's own configuration would count as soon as git looks into it.
    "status": ("--ignore-submodules=dirty",),
    "diff": ("--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty"),
}
"""What is said to a command whoever calls it."""
_LISTED = ("config", "--list", "-z", "--show-scope", "--show-origin", "--includes")
"""What is asked before anything else, to know what has to be kept from git."""
_REPOSITORY = re.compile(
    "GIT_(DIR|WORK_TREE|INDEX_FILE|COMMON_DIR|NAMESPACE|OBJECT_DIRECTORY|CONFIG"
    "|ALTERNATE_OBJECT_DIRECTORIES|PREFIX|QUARANTINE_PATH|TRACE.*|EDITOR|SEQUENCE_EDITOR)"
)
"""Variables with which git would work on something else, or print what nobody asked for."""
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
"""What git says when the remote has ended it before it said where its refs are."""
_BEGUN = re.compile(r"RPC failed|hung up unexpectedly|unexpected disconnect")
_OWN_LOCK = re.compile(
    r"Unable to create '([^']*/refs/worktree/sequencer(?:-work)?/[^']*\.lock)': File exists"
)
LOCK_S = 3.0
"""Older than this is a lock of one of our own refs only if its git was killed."""
_NETWORK = ("push", "fetch", "ls-remote")
STOPPED_S = 7.0
"""What reaches a remote may take so much longer when its caller has been told to stop."""
HANGING_S = 1.0
"""The same for what comes next, if that was not enough."""
_RACING = ("fetch", "fast-import")
_RACE_ATTEMPTS = 8
"""Times that another process of this clone may be in the way."""
_RACE_PAUSE_S = 0.05
_LOCAL_RACE = re.compile(
    r"^(?!remote:).*(cannot lock ref|unable to update local ref|\.lock': File exists)", re.MULTILINE
)
"""What git says when two processes of a clone want the same at once."""
UNWRITABLE = re.compile(
    r"^(?!remote:).*(cannot lock ref|unable to update local ref|unable to create temporary file"
    r"|No space left on device|Disk quota exceeded|Read-only file system|unable to write"
    r"|insufficient permission for adding an object|\.lock': )",
    re.MULTILINE,
)
FULL = {
    errno.ENOSPC: re.compile(r"^(?!remote:).*No space left on device", re.MULTILINE),
    errno.EDQUOT: re.compile(r"^(?!remote:).*Disk quota exceeded", re.MULTILINE),
}
"""What git says on a full disk of this machine."""
INCOMPLETE = re.compile(
    r"^(?!remote:).*(unresolved deltas|did not send all necessary objects"
    r"|(missing|bad|unable to read) (blob|tree|commit|object)|unable to read sha1 file"
    r"|could not (read|parse) (commit )?[0-9a-f]{40}|object file .* is empty"
    r"|loose object .* is corrupt|unable to unpack [0-9a-f]{40})",
    re.MULTILINE | re.IGNORECASE,
)
"""What git says when something that its refs lead to is missing in this repository, or damaged."""
_VERSION = re.compile(r"git version (\d+)\.(\d+)")
NOWHERE = re.compile(
    r"does not appear to be a git repository|[Rr]epository.* not found|error: 404"
    r"|No such file or directory"
)


class GitFailed(Exception):
    """A git process ended otherwise than it should; inside this package only."""

    def __init__(self, argv: Sequence[str], code: int | None, stderr: str) -> None:
        """Keep what was run, how it ended (None: it was killed for its time) and its words."""
        self.argv = tuple(argv)
        self.code = code
        self.stderr = stderr.strip()
        super().__init__(f"git {argv[0]} ended with {code}: {self.reason}")
        if found := next((one for one in FULL if self.says(FULL[one])), 0):
            # So that `out_of_resources` knows it: git tells no number.
            self.__cause__ = OSError(found, os.strerror(found))

    @property
    def reason(self) -> str:
        """Return what git said, in one line for people."""
        if self.code is None:
            return "no answer in time"
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))]
        # Of ssh's failures git only says that there was one.
        denied = [line for line in lines if DENIED.search(line)]
        chosen = next(iter(denied or told or lines), f"exit code {self.code}")
        return re.sub(r"^(fatal|error): ", "", chosen).strip()

    def says(self, what: re.Pattern[str]) -> bool:
        """Return whether git has said *what*: `DENIED`, `UNWRITABLE`, `INCOMPLETE` or `NOWHERE`."""
        return what.search(self.stderr) is not None

    @property
    def is_turned_away(self) -> bool:
        """Return whether the remote has denied it before anything was sent there."""
        return self.says(DENIED) and self.says(_BEFORE) and not self.says(_BEGUN)

    @property
    def is_race(self) -> bool:
        """Return whether another process of this clone was in the way, so that it may go now."""
        return self.argv[0] in _RACING and self.says(_LOCAL_RACE)


class Done(Struct, frozen=True):
    """How a git process ended."""

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
    ) -> None:
        """Work in the repository that *folder* is in; *timeout_s* is for what reaches a remote.

        What works here has a minute, or that time if it is longer. *allowed* are settings of
        the repository's own that may act, as `acting_settings` tells them; None: it is only
        looked at, and no remote is reached. *git_dir* is where the repository is, if git is
        not to look for it: a bare one has to be named. *work_tree* are its files then.
        """
        self.folder = folder
        self.allowed = allowed
        self.timeout_s = timeout_s
        self.started = 0
        """Processes since the beginning, for whoever measures."""
        self.stopped: Callable[[], bool] = never
        """Whether whoever waits for a remote has been told to stop."""
        self._hangs = False
        """Whether the remote has not answered in the time that was left then."""
        self._environment = _clean(os.environ if environment is None else environment)
        self._environment["GIT_ALLOW_PROTOCOL"] = NO_TRANSPORT
        if allowed is not None:
            self._environment["GIT_ALLOW_PROTOCOL"] = ":".join(TRANSPORTS)
        if git_dir is not None:
            self._environment["GIT_DIR"] = str(git_dir)
        if work_tree is not None:
            self._environment["GIT_WORK_TREE"] = str(work_tree)
        self._keeper = SettingsKeeper(folder, self._environment, allowed, git_dir, self._settings)

    def at(
        self, folder: Path, *, timeout_s: float = _LOCAL_TIMEOUT_S, git_dir: Path | None = None
    ) -> Git:
        """Return what runs git in *folder* in the same way; with *git_dir* those are its files."""
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

        *extra* is added to the environment, *settings* are ``key=value`` of git's; *timeout_s*
        is the time that it has, if that is less than usual.

        Raises:
            GitFailed: its exit code is not in *accepts*, or its time was over.
            ConfigurationError: there is no git.
        """
        is_remote = argv[0] in _NETWORK
        limit_s = self.timeout_s if is_remote else max(self.timeout_s, _LOCAL_TIMEOUT_S)
        limit_s = limit_s if timeout_s is None else min(timeout_s, limit_s)

        def once() -> Done:
            process = self.start(*argv, extra=extra, settings=settings)
            running = GitProcess(process, argv, time.monotonic() + limit_s)
            if not is_remote:
                return running.done(stdin, accepts)
            running.stopped = self.stopped
            running.stopped_s = HANGING_S if self._hangs else STOPPED_S
            try:
                return running.done(stdin, accepts)
            finally:
                self._hangs = running.is_cut and running.left_s() <= 0

        for attempt in range(_RACE_ATTEMPTS - 1):
            try:
                return once()
            except GitFailed as failed:
                if self._has_freed(failed.stderr):
                    continue
                if not failed.is_race:
                    raise
            time.sleep(random.uniform(0, _RACE_PAUSE_S * 2**attempt))  # noqa: S311 - no secret
        return once()

    def _has_freed(self, stderr: str) -> bool:
        """Remove the lock that was in git's way, if it is our own and nobody's any more.

        Returns whether the way is free.
        """
        found = _OWN_LOCK.search(stderr)
        if found is None:
            return False
        path = self.folder / found[1]
        with contextlib.suppress(OSError):
            while 0.0 <= (left := path.stat().st_mtime + LOCK_S - time.time()) <= LOCK_S:
                time.sleep(min(left, 0.05) + 0.01)
            path.unlink()
        return True

    def start(
        self,
        *argv: str,
        extra: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Start ``git ARGV`` with three pipes, in a session of its own: Ctrl-C is not for it.

        Raises:
            GitFailed: the repository can't be read, or a remote is asked for by who only looks.
            ConfigurationError: there is no git, or it would reach a remote that is not allowed.
        """
        argv = (argv[0], *_FLAGS.get(argv[0], ()), *argv[1:])
        variables = {**self._environment, **self._variables(argv), **(extra or {})}
        options = [word for setting in (*_SETTINGS, *settings) for word in ("-c", setting)]
        self.started += 1
        try:
            return unbroken(
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
        """See the function of this name."""
        return self._keeper.acting(remote)

    def _variables(self, argv: tuple[str, ...]) -> dict[str, str]:
        """Return the variables that keep git from what is not allowed; see `start`."""
        if argv[0] == "version" or argv == _LISTED:
            return {}
        is_remote = argv[0] in _NETWORK and "--get-url" not in argv
        if is_remote and self.allowed is None:
            raise GitFailed(argv, 128, "fatal: a process that only looks does not ask the remote")
        try:
            return self._keeper.variables(argv[argv.index("--") + 1] if is_remote else None)
        except OSError as error:
            raise GitFailed(argv, 128, f"fatal: {error}") from error

    def _settings(self, variables: Mapping[str, str]) -> bytes:
        """Return all settings that count in the repository, for `own_settings`."""
        done = self.run(*_LISTED, extra=variables, accepts=(0, 128))
        return b"" if done.code else done.stdout

    def unusable(self, needed: tuple[int, int]) -> ConfigurationError | None:
        """Return why this git can't be used: there is none, or none that is as new as *needed*."""
        try:
            version = self.text("version")
        except ConfigurationError as error:
            return error
        except GitFailed as failed:
            told = f"git does not run: {failed.reason}"
            return ConfigurationError(told, hint="try 'git version'")
        found = _VERSION.match(version)
        if found is None or (int(found[1]), int(found[2])) >= needed:
            return None
        hint = f"install git {'.'.join(map(str, needed))} or newer"
        return ConfigurationError(f"{version} is too old", hint=hint)

    def text(self, *argv: str, accepts: Sequence[int] = (0,)) -> str:
        """Return what ``git ARGV`` prints, without the white space around; see `run`."""
        return self.run(*argv, accepts=accepts).stdout.decode("utf-8", "surrogateescape").strip()


def acting_settings(
    repository: Path, remote: str | None = None, environment: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Return what *repository*'s own configuration has that runs programs, or sends elsewhere.

    Key -> value, several values by lines. Of remotes only those of *remote* count, and of those
    from which a partial clone fetches by itself. Empty where there is no repository.
    """
    return Git(repository, environment).acting_settings(remote)


def taken_out(names: Collection[str], tree: Path, project: Path) -> list[str]:
    """Return which of *names* git has brought to the work tree *tree* and are missing there.

    They are those that *project* tracks at present and that a commit of the tree's branch had.
    The paths are relative to both folders.

    Raises:
        GitFailed: git can't say.
    """
    extra = {"GIT_LITERAL_PATHSPECS": "1"}
    told = Git(project).run("ls-files", "-z", "--", *names, extra=extra).stdout
    tracked = {*told.decode("utf-8", "surrogateescape").split("\0")}
    looked = Git(tree)
    return [
        name
        for name in names
        if name in tracked
        and not os.path.lexists(tree / name)
        and looked.run("rev-list", "-1", "HEAD", "--", name, extra=extra).stdout.strip()
    ]


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: text for name, text in environment.items() if not _REPOSITORY.fullmatch(name)}
    kept.update(
        LC_ALL="C",
        GIT_TERMINAL_PROMPT="0",
        GIT_OPTIONAL_LOCKS="0",
        GIT_EDITOR=":",
        GIT_SEQUENCE_EDITOR=":",
        GIT_ASKPASS=kept.get("GIT_ASKPASS", "true"),
        SSH_ASKPASS_REQUIRE="never",
        GCM_INTERACTIVE="never",
    )
    # ssh asks on the terminal, and in a session of its own it has none.
    return kept


INSPECTOR = RepositoryInspector(acting_settings, taken_out)
"""How trust looks at the repository of a project."""
