"""What a repository's own configuration could run or send elsewhere, and how git is kept from it.

Git obeys `.git/config`, and what that includes, as if its user had written it. A person's own
settings (global, system, environment) count as ever; those of the repository only if they were
allowed with the value that they still have. Not promised: anything against who changes the
file between this look and git's own.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from msgspec import Struct

from sequencer.errors import ConfigurationError, typed_command
from sequencer.files.textfile import expand_home
from sequencer.project.store_requests import EVERYTHING

TRANSPORTS = ("file", "git", "http", "https", "ssh")
"""All that anything is ever sent by."""
NO_TRANSPORT = "none"
_MAX_KNOWN = 64
_KNOWN: dict[object, Configuration] = {}
"""What was read of each repository, by where it is and whose settings count."""
_ACTING = re.compile(
    r"core\.(sshcommand|gitproxy|attributesfile|excludesfile|worktree|alternaterefscommand"
    r"|protectntfs|protecthfs)"
    r"|filter\..*\.(clean|smudge|process|required)|merge\..*\.driver"
    r"|hook\..*\.(command|event|enabled)"
    r"|credential\.(.*\.)?helper|push\.pushoption|fetch\.bundleuri|lfs\..*"
    r"|http\.(?!(.*\.)?(postbuffer|lowspeed\w*|version|maxrequests|minsessions)$).*"
    r"|url\..*\.(insteadof|pushinsteadof)",
    re.DOTALL,
)
"""Keys that run a program, read another file as rules, or send something elsewhere.

Hooks, fsmonitor, pagers, editors, askpass, gpg and external diffs are off whoever asks for them.
"""
_OF_REMOTE = re.compile(
    r"remote\.(?P<name>.*)\.(url|pushurl|uploadpack|receivepack|vcs|proxy|proxyauthmethod)",
    re.DOTALL,
)
_UNAVOIDABLE = re.compile(
    r"url\..*|remote\..*\.(url|pushurl|vcs|uploadpack|receivepack)|core\.gitproxy", re.DOTALL
)
"""What no later value takes back, since git adds it or takes the first one: with one that is
not allowed, nothing is sent at all."""
_NEUTRAL = {
    "core.sshcommand": "ssh",
    "core.alternaterefscommand": "true",
    "core.protectntfs": "true",
    "driver": "false",
    # Hooks that newer versions of git take from their configuration.
    "command": "true",
    "enabled": "false",
    "required": "false",
    "sslverify": "true",
    "schannelcheckrevoke": "true",
    "followredirects": "initial",
}
"""What takes the place of a value where the user has none: by key, or by its last part."""
_LISTS = ("extraheader", "curloptresolve", "pushoption")
"""Last parts of keys that add up; an empty value begins them again."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER = re.compile(r"([A-Za-z0-9][A-Za-z0-9+.-]*)::")
_HOST = re.compile(r"[^/]*:")
"""host:path; a path with a colon has a slash before it."""
_OWN_SCOPES = ("local", "worktree")
_MAX_POINTER = 4096


class SettingLine(NamedTuple):
    """One line of git's configuration."""

    key: str
    value: str
    is_own: bool
    """The repository says so, not the user."""


class RepositoryPlace(NamedTuple):
    """Where git finds a repository."""

    top: Path
    """The folder that holds ``.git``, or is called so."""
    git_dir: Path
    common: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that say what its own settings are, but for what they include."""
        own = (self.top / ".git", self.git_dir / "commondir", self.git_dir / "config.worktree")
        return (*own, self.common / "config")


class GitOverrides(Struct, frozen=True):
    """What keeps git from settings that are not allowed."""

    pairs: tuple[tuple[str, str], ...] = ()
    is_placed: bool = False
    """Its work tree is where ``.git`` is, whatever it says."""
    refused: tuple[tuple[str, str], ...] = ()
    """Nothing may be sent or fetched with these."""


class Configuration(Struct, frozen=True):
    """All that git would go by in one repository, the last word last."""

    lines: tuple[SettingLine, ...] = ()
    marks: tuple[object, ...] = ()
    """What the files were like that it was read from."""
    files: tuple[Path, ...] = ()

    def acting(self, remote: str | None) -> dict[str, str]:
        """Return the repository's own settings that could act; of remotes those of *remote*.

        And those of remotes that git fetches from by itself, in a partial clone.
        """
        remotes = {remote, *self.promisors()}
        found: dict[str, str] = {}
        for line in self.lines:
            if line.is_own and _is_acting(line.key, remotes):
                before = found.get(line.key)
                found[line.key] = line.value if before is None else f"{before}\n{line.value}"
        return found

    def promisors(self) -> set[str]:
        """Return the remotes from which git fetches what a partial clone has left there."""
        found = {line.value for line in self.lines if line.key == "extensions.partialclone"}
        for line in self.lines:
            if line.key.startswith("remote.") and line.key.endswith(".promisor"):
                found.add(line.key[len("remote.") : -len(".promisor")])
        return found

    def overrides(self, allowed: Mapping[str, str], remote: str | None) -> GitOverrides:
        """Return what keeps git, on its way to *remote*, from all but what is *allowed*."""
        acting = self.acting(remote)
        found = [pair for pair in acting.items() if allowed.get(pair[0]) != pair[1]]
        pairs: list[tuple[str, str]] = []
        for key, _ in found:
            if key != "core.worktree" and not _UNAVOIDABLE.fullmatch(key):
                pairs += self._instead(key)
        if any(key.startswith("credential.") for key, _ in found):
            # One that is empty ends the list for every address.
            pairs += [("credential.helper", ""), *self._helpers(allowed)]
        return GitOverrides(
            tuple(pairs),
            is_placed=any(key == "core.worktree" for key, _ in found),
            refused=tuple(pair for pair in found if _UNAVOIDABLE.fullmatch(pair[0])),
        )

    def _instead(self, key: str) -> Iterator[tuple[str, str]]:
        last = key.rpartition(".")[2]
        if key.startswith("credential."):
            return
        users = [line.value for line in self.lines if line.key == key and not line.is_own]
        if not users and key.startswith("http."):
            users = [
                line.value for line in self.lines if line.key == f"http.{last}" and not line.is_own
            ]
        if last in _LISTS:
            yield key, ""
            yield from ((key, value) for value in users)
        else:
            yield key, users[-1] if users else _NEUTRAL.get(key, _NEUTRAL.get(last, ""))

    def _helpers(self, allowed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        own = self.acting(None)
        for line in self.lines:
            is_helper = line.key.startswith("credential.") and line.key.endswith(".helper")
            if is_helper and (not line.is_own or allowed.get(line.key) == own.get(line.key)):
                yield line.key, line.value

    def addresses(self, remote: str) -> Iterator[str]:
        """Yield every address that *remote* may lead to, as rewritten by any rule there is."""
        keys = (f"remote.{remote}.url", f"remote.{remote}.pushurl")
        found = [line.value for line in self.lines if line.key in keys] or [remote]
        for address in found:
            yield address
            for line in self.lines:
                is_rule = _UNAVOIDABLE.fullmatch(line.key) and line.key.startswith("url.")
                if is_rule and line.value and address.startswith(line.value):
                    base = line.key[len("url.") :].rpartition(".")[0]
                    yield base + address[len(line.value) :]


def _is_acting(key: str, remotes: Iterable[str | None]) -> bool:
    found = _OF_REMOTE.fullmatch(key)
    return found["name"] in remotes if found else _ACTING.fullmatch(key) is not None


def place_of(folder: str) -> RepositoryPlace | None:
    """Return the repository that git would find from the real path *folder* up; None: none.

    Raises:
        OSError: what is there can't be read.
        PermissionError: a folder on the way is a repository without a work tree, which may
            have come with files of somebody else's.
    """
    while True:
        dot = os.path.join(folder, ".git")  # noqa: PTH118 (before every git process)
        if os.path.lexists(dot):
            top = Path(folder)
            git_dir = Path(dot) if os.path.isdir(dot) else named(Path(dot), "gitdir: ")  # noqa: PTH112
            return RepositoryPlace(top, git_dir, common_of(git_dir))
        if all(os.path.lexists(f"{folder}/{name}") for name in ("HEAD", "objects", "refs")):
            raise PermissionError(f"cannot use bare repository {folder!r}")
        above = os.path.dirname(folder)  # noqa: PTH120 (same)
        if above == folder:
            return None
        folder = above


def common_of(git_dir: Path) -> Path:
    """Return where *git_dir* has its settings: in that of the repository it is a work tree of."""
    pointer = git_dir / "commondir"
    return named(pointer, "") if pointer.is_file() else git_dir


def named(pointer: Path, prefix: str) -> Path:
    """Return the folder that a file with one line names, relative to its own."""
    fd = os.open(pointer, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        line = os.fsdecode(file.read(_MAX_POINTER)).rstrip("\r\n")
    if not line.startswith(prefix):
        raise OSError(f"{pointer} does not name a folder")
    return pointer.parent / line.removeprefix(prefix)


def mark_of(files: Iterable[Path]) -> tuple[object, ...]:
    """Return what changes when one of *files* does."""
    found: list[object] = []
    for path in files:
        try:
            there = os.stat(path)  # noqa: PTH116 (before every git process)
        except OSError:
            found.append(None)
        else:
            # What comes and goes in a folder says nothing.
            is_folder = stat.S_ISDIR(there.st_mode)
            times = () if is_folder else (there.st_mtime_ns, there.st_ctime_ns, there.st_size)
            found.append((there.st_ino, there.st_mode, *times))
    return tuple(found)


def parse(told: bytes, cwd: Path, place: RepositoryPlace) -> Configuration:
    """Return what ``git config --list -z --show-scope --show-origin`` has *told*, run in *cwd*."""
    fields = os.fsdecode(told).split("\0")
    lines, files = [], {*place.files}
    for scope, origin, text in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        key, _, value = text.partition("\n")
        is_own = scope in _OWN_SCOPES
        lines.append(SettingLine(key, value, is_own))
        if origin.startswith("file:"):
            file = cwd / origin.removeprefix("file:")
            files.add(file)
            if is_own and key.startswith(("include.path", "includeif.")):
                files.add(file.parent / expand_home(value))
                if ".onbranch:" in key.lower():
                    files.add(place.git_dir / "HEAD")
    ordered = tuple(sorted(files))
    return Configuration(tuple(lines), mark_of(ordered), ordered)


class SettingsKeeper(Struct, frozen=True):
    """Keeps the git processes of one place from what their repository is not allowed."""

    folder: Path
    environment: Mapping[str, str]
    allowed: Mapping[str, str] | None
    """The repository's own settings that may act; None: nothing may, and no remote is reached."""
    git_dir: Path | None
    ask: Callable[[Mapping[str, str]], bytes]
    """Lists git's settings."""

    def acting(self, remote: str | None) -> Mapping[str, str]:
        """Return what the repository has that could act; empty where there is none."""
        try:
            place = self._place()
        except OSError:
            return {}
        return {} if place is None else self._configuration(place).acting(remote)

    def variables(self, remote: str | None) -> dict[str, str]:
        """Return the variables with which a git process does nothing that is not allowed.

        *remote* is what it will reach, None: nothing.

        Raises:
            OSError: the repository can't be read, or may have come with somebody's files.
            ConfigurationError: that remote is not to be reached.
        """
        place = self._place()
        if place is None:
            return {}
        found = self._pinned(place)
        if self.allowed is EVERYTHING and remote is None:
            return found
        configuration = self._configuration(place)
        overrides = GitOverrides()
        if self.allowed is not EVERYTHING:
            overrides = configuration.overrides(self.allowed or {}, remote)
        if remote is not None:
            self._ensure_reachable(remote, configuration, overrides, place)
        if self.allowed is None or overrides.refused:
            # A partial clone fetches what it lacks from wherever it is told to.
            found |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": NO_TRANSPORT}
        if overrides.is_placed and self.git_dir is None:
            found["GIT_WORK_TREE"] = str(place.top)
        return found | self._as_variables(overrides.pairs)

    def _place(self) -> RepositoryPlace | None:
        if self.git_dir is not None:
            return RepositoryPlace(self.folder, self.git_dir, common_of(self.git_dir))
        return place_of(os.path.realpath(self.folder))

    def _pinned(self, place: RepositoryPlace) -> dict[str, str]:
        """Return what keeps git from another repository above that of *place*."""
        if self.git_dir is not None:
            return {}
        users, above = self.environment.get("GIT_CEILING_DIRECTORIES"), str(place.top.parent)
        return {"GIT_CEILING_DIRECTORIES": f"{users}:{above}" if users else above}

    def _as_variables(self, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Return *pairs* as git takes them from the environment, after those of the user."""
        before = self.environment.get("GIT_CONFIG_COUNT", "")
        first = int(before) if before.isdecimal() else 0
        found = {"GIT_CONFIG_COUNT": str(first + len(pairs))} if pairs else {}
        for number, (key, value) in enumerate(pairs, first):
            found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return found

    def _configuration(self, place: RepositoryPlace) -> Configuration:
        """Return all that git goes by in *place*; asked of git again when a file has changed."""
        of_user = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG")
        whose = [pair for pair in self.environment.items() if pair[0].startswith(of_user)]
        key = (place, tuple(sorted(whose)))
        known = _KNOWN.get(key)
        if known is not None and mark_of(known.files) == known.marks:
            return known
        found = parse(self.ask(self._pinned(place)), self.folder, place)
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = found
        return found

    def _ensure_reachable(
        self,
        remote: str,
        configuration: Configuration,
        overrides: GitOverrides,
        place: RepositoryPlace,
    ) -> None:
        for address in configuration.addresses(remote):
            why = refusal(address, place.top)
            if why is not None:
                raise ConfigurationError(
                    why,
                    where=f"remote {remote!r}",
                    hint="use a bare repository outside of the project, or the address of a "
                    f"server: {typed_command('git', 'remote', 'set-url', remote, 'ADDRESS')}",
                )
        for key, value in overrides.refused:
            raise ConfigurationError(
                f"{key} is {value!r}, but you did not trust this project with that",
                where=str(place.common / "config"),
                hint="if you want it, 'sequencer trust' allows it; "
                f"otherwise {typed_command('git', 'config', '--unset-all', key)}",
            )


def refusal(address: str, top: Path) -> str | None:
    """Return why nothing is ever sent to *address* from the work tree *top*; None: it may be."""
    helper, scheme = _HELPER.match(address), _SCHEME.match(address)
    if helper is not None:
        return f"{address!r} runs the program 'git-remote-{helper[1]}', which is not allowed"
    path = address
    if scheme is not None and scheme[1].lower() != "file":
        known = {*TRANSPORTS, "git+ssh", "ssh+git"}
        return (
            None
            if scheme[1].lower() in known
            else f"{scheme[1]!r} is not one of git's own transports"
        )
    if scheme is not None:
        path = unquote(address[scheme.end() :])
    elif _HOST.match(address):
        return None
    real, inside = os.path.realpath(top / expand_home(path)), os.path.realpath(top)
    is_there = any(os.path.lexists(f"{real}{suffix}") for suffix in ("", ".git"))
    if is_there and (real == inside or real.startswith(f"{inside}/")):
        return f"{address!r} is inside the project itself, so its hooks would run at each push"
    return None
