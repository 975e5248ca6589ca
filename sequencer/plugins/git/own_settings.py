"""Finds settings in a repository's own configuration that act, and keeps git from using them.

To act is to run a program or to send data elsewhere. Git obeys `.git/config`, and the files that it
includes, as if the user had written them. The user's settings (global, system, environment) apply
as usual; the repository's apply only if their current value was allowed. Not promised: protection
against a change of the file between this check and git's own read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from sequencer.errors import ConfigurationError, format_other_command
from sequencer.files.textfile import expand_home
from sequencer.model.whole_numbers import parse_whole_number
from sequencer.project.store_requests import EVERYTHING

TRANSPORTS = ("file", "git", "http", "https", "ssh")
"""The only protocols that git may use."""
NO_TRANSPORT = "none"
_MAX_KNOWN = 64
_KNOWN: dict[object, Configuration] = {}
"""Cache of configurations, by repository and by the user's environment."""
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
"""Keys that run a program, read rules from another file, or send data elsewhere.

Hooks, fsmonitor, pagers, editors, askpass, gpg and external diffs are always off.
"""
_OF_REMOTE = re.compile(
    r"remote\.(?P<name>.*)\.(url|pushurl|uploadpack|receivepack|vcs|proxy|proxyauthmethod)",
    re.DOTALL,
)
_UNAVOIDABLE = re.compile(
    r"url\..*|remote\..*\.(url|pushurl|vcs|uploadpack|receivepack)|core\.gitproxy", re.DOTALL
)
"""Keys that a later value can't override, because git adds values or uses the first one. If such a
setting is not allowed, nothing is sent."""
_NEUTRAL = {
    "core.sshcommand": "ssh",
    "core.alternaterefscommand": "true",
    "core.protectntfs": "true",
    "driver": "false",
    # For hooks that newer versions of git read from their configuration.
    "command": "true",
    "enabled": "false",
    "required": "false",
    "sslverify": "true",
    "schannelcheckrevoke": "true",
    "followredirects": "initial",
}
"""Values that replace the repository's if the user has none; by key, or by its last part."""
_LISTS = ("extraheader", "curloptresolve", "pushoption")
"""Last parts of keys whose values form a list; an empty value clears the list."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HELPER = re.compile(r"([A-Za-z0-9][A-Za-z0-9+.-]*)::")
_HOST = re.compile(r"[^/]*:")
"""host:path; a local path with a colon has a slash before the colon."""
_OWN_SCOPES = ("local", "worktree")
_MAX_POINTER = 4096


class SettingLine(Struct, frozen=True):
    """One line of git's configuration."""

    key: str
    value: str
    is_own: bool
    """Whether it is from the repository and not from the user."""


class RepositoryPlace(Struct, frozen=True):
    """The folders of a repository."""

    top: Path
    """The folder that contains ``.git``; for a named `git_dir`, the folder of its files."""
    git_dir: Path
    common: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that decide its own settings, without the files that they include."""
        paths = (self.top / ".git", self.git_dir / "commondir", self.git_dir / "config.worktree")
        return (*paths, self.common / "config")


class GitOverrides(Struct, frozen=True):
    """The overrides that keep git from settings that are not allowed."""

    pairs: tuple[tuple[str, str], ...] = ()
    is_placed: bool = False
    """Whether the work tree must be set to the folder with ``.git``, against ``core.worktree``."""
    refused: tuple[tuple[str, str], ...] = ()
    """Settings that can't be overridden; with them, nothing may be sent or fetched."""


class Configuration(Struct, frozen=True):
    """All settings that git would use in one repository, in git's order: the last one wins."""

    lines: tuple[SettingLine, ...] = ()
    marks: tuple[object, ...] = ()
    """The fingerprints of `files` at the time of the read; see `fingerprint_files`."""
    files: tuple[Path, ...] = ()

    def acting_settings(self, remote: str | None) -> dict[str, str]:
        """Return the repository's own settings that act.

        Remotes' settings are included only for *remote* and for remotes from which a partial clone
        fetches by itself.
        """
        remotes = {remote, *self.promisors()}
        settings: dict[str, str] = {}
        for line in self.lines:
            if line.is_own and _is_acting(line.key, remotes):
                old_value = settings.get(line.key)
                settings[line.key] = (
                    line.value if old_value is None else f"{old_value}\n{line.value}"
                )
        return settings

    def promisors(self) -> set[str]:
        """Return the remotes from which git fetches the missing objects of a partial clone."""
        remotes = {line.value for line in self.lines if line.key == "extensions.partialclone"}
        for line in self.lines:
            if line.key.startswith("remote.") and line.key.endswith(".promisor"):
                remotes.add(line.key[len("remote.") : -len(".promisor")])
        return remotes

    def build_overrides(self, allowed: Mapping[str, str], remote: str | None) -> GitOverrides:
        """Return the overrides for a command that contacts *remote*, with *allowed* settings."""
        acting_settings = self.acting_settings(remote)
        unwanted_pairs = [
            pair for pair in acting_settings.items() if allowed.get(pair[0]) != pair[1]
        ]
        pairs: list[tuple[str, str]] = []
        for key, _ in unwanted_pairs:
            if key != "core.worktree" and not _UNAVOIDABLE.fullmatch(key):
                pairs += self._replacement(key)
        if any(key.startswith("credential.") for key, _ in unwanted_pairs):
            # An empty helper clears the list for every address, so allowed ones are added again.
            pairs += [("credential.helper", ""), *self._helpers(allowed)]
        return GitOverrides(
            tuple(pairs),
            is_placed=any(key == "core.worktree" for key, _ in unwanted_pairs),
            refused=tuple(pair for pair in unwanted_pairs if _UNAVOIDABLE.fullmatch(pair[0])),
        )

    def _replacement(self, key: str) -> Iterator[tuple[str, str]]:
        """Yield the settings that restore the user's value of *key*, or a neutral one."""
        last_part = key.rpartition(".")[2]
        if key.startswith("credential."):
            return
        values = [line.value for line in self.lines if line.key == key and not line.is_own]
        if not values and key.startswith("http."):
            values = [
                line.value
                for line in self.lines
                if line.key == f"http.{last_part}" and not line.is_own
            ]
        if last_part in _LISTS:
            yield key, ""
            yield from ((key, value) for value in values)
        else:
            yield key, values[-1] if values else _NEUTRAL.get(key, _NEUTRAL.get(last_part, ""))

    def _helpers(self, allowed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        acting_settings = self.acting_settings(None)
        for line in self.lines:
            is_helper = line.key.startswith("credential.") and line.key.endswith(".helper")
            if is_helper and (
                not line.is_own or allowed.get(line.key) == acting_settings.get(line.key)
            ):
                yield line.key, line.value

    def addresses(self, remote: str) -> Iterator[str]:
        """Yield every address that *remote* may mean, also after any rewrite rule."""
        keys = (f"remote.{remote}.url", f"remote.{remote}.pushurl")
        addresses = [line.value for line in self.lines if line.key in keys] or [remote]
        for address in addresses:
            yield address
            for line in self.lines:
                is_rule = _UNAVOIDABLE.fullmatch(line.key) and line.key.startswith("url.")
                if is_rule and line.value and address.startswith(line.value):
                    base = line.key[len("url.") :].rpartition(".")[0]
                    yield base + address[len(line.value) :]


def _is_acting(key: str, remotes: Iterable[str | None]) -> bool:
    match = _OF_REMOTE.fullmatch(key)
    return match["name"] in remotes if match else _ACTING.fullmatch(key) is not None


def find_repository(folder: str) -> RepositoryPlace | None:
    """Return the repository that git would find in *folder* or above it; None: none.

    *folder* must be a real path, without links.

    Raises:
        OSError: git's files can't be read.
        PermissionError: a folder on the way is a bare repository, which may have come with
            another person's files.
    """
    while True:
        dot = os.path.join(folder, ".git")  # noqa: PTH118 (before every git process)
        if os.path.lexists(dot):
            top = Path(folder)
            git_dir = Path(dot) if os.path.isdir(dot) else read_pointer(Path(dot), "gitdir: ")  # noqa: PTH112
            return RepositoryPlace(top, git_dir, find_common_dir(git_dir))
        if all(os.path.lexists(f"{folder}/{name}") for name in ("HEAD", "objects", "refs")):
            raise PermissionError(f"cannot use bare repository {folder!r}")
        parent = os.path.dirname(folder)  # noqa: PTH120 (same)
        if parent == folder:
            return None
        folder = parent


def find_common_dir(git_dir: Path) -> Path:
    """Return the folder with the settings of *git_dir*: the repository's, for a linked tree."""
    pointer = git_dir / "commondir"
    return read_pointer(pointer, "") if pointer.is_file() else git_dir


def read_pointer(pointer: Path, prefix: str) -> Path:
    """Return the folder named by *pointer*, a one-line file whose line starts with *prefix*.

    A relative name starts from the folder of *pointer*.

    Raises:
        OSError: the file can't be read or does not start with *prefix*.
    """
    fd = os.open(pointer, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        line = os.fsdecode(file.read(_MAX_POINTER)).rstrip("\r\n")
    if not line.startswith(prefix):
        raise OSError(f"{pointer} does not name a folder")
    return pointer.parent / line.removeprefix(prefix)


def fingerprint_files(files: Iterable[Path]) -> tuple[object, ...]:
    """Return a fingerprint that changes when one of *files* changes."""
    marks: list[object] = []
    for path in files:
        try:
            info = os.stat(path)  # noqa: PTH116 (before every git process)
        except OSError:
            marks.append(None)
        else:
            # The times of a folder change with its entries, which do not matter here.
            is_folder = stat.S_ISDIR(info.st_mode)
            times = () if is_folder else (info.st_mtime_ns, info.st_ctime_ns, info.st_size)
            marks.append((info.st_ino, info.st_mode, *times))
    return tuple(marks)


def parse_configuration(output: bytes, cwd: Path, place: RepositoryPlace) -> Configuration:
    """Return the settings in *output* of ``git config --list -z --show-scope --show-origin``.

    Git ran in *cwd*, to which the paths in the output are relative.
    """
    fields = os.fsdecode(output).split("\0")
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
    sorted_files = tuple(sorted(files))
    return Configuration(tuple(lines), fingerprint_files(sorted_files), sorted_files)


class SettingsGuard(Struct, frozen=True):
    """Keeps git processes of one repository from settings that are not allowed."""

    folder: Path
    environment: Mapping[str, str]
    allowed: Mapping[str, str] | None
    """The repository's own settings that may act; None: none, and no remote is contacted."""
    git_dir: Path | None
    ask: Callable[[Mapping[str, str]], bytes]
    """Lists git's settings; gets environment variables for that call."""

    def acting_settings(self, remote: str | None) -> Mapping[str, str]:
        """Return the repository's settings that act; empty if there is no repository."""
        try:
            place = self._find_repository()
        except OSError:
            return {}
        return {} if place is None else self._read_configuration(place).acting_settings(remote)

    def build_variables(self, remote: str | None) -> dict[str, str]:
        """Return environment variables that turn off all settings that are not allowed.

        *remote* is the remote that git will contact; None: none.

        Raises:
            OSError: the repository can't be read, or is a bare one of another person.
            ConfigurationError: that remote must not be contacted.
        """
        place = self._find_repository()
        if place is None:
            return {}
        variables = self._ceiling_variable(place)
        if self.allowed is EVERYTHING and remote is None:
            return variables
        configuration = self._read_configuration(place)
        overrides = GitOverrides()
        if self.allowed is not EVERYTHING:
            overrides = configuration.build_overrides(self.allowed or {}, remote)
        if remote is not None:
            self._ensure_reachable(remote, configuration, overrides, place)
        if self.allowed is None or overrides.refused:
            # A partial clone would fetch missing objects from any address in its configuration.
            variables |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": NO_TRANSPORT}
        if overrides.is_placed and self.git_dir is None:
            variables["GIT_WORK_TREE"] = str(place.top)
        return variables | self._to_variables(overrides.pairs)

    def _find_repository(self) -> RepositoryPlace | None:
        if self.git_dir is not None:
            return RepositoryPlace(self.folder, self.git_dir, find_common_dir(self.git_dir))
        return find_repository(os.path.realpath(self.folder))

    def _ceiling_variable(self, place: RepositoryPlace) -> dict[str, str]:
        """Return a variable that keeps git from repositories above *place*."""
        if self.git_dir is not None:
            return {}
        ceilings, parent = self.environment.get("GIT_CEILING_DIRECTORIES"), str(place.top.parent)
        return {"GIT_CEILING_DIRECTORIES": f"{ceilings}:{parent}" if ceilings else parent}

    def _to_variables(self, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
        """Return *pairs* as environment variables for git, after those of the user."""
        start = parse_whole_number(self.environment.get("GIT_CONFIG_COUNT", "")) or 0
        variables = {"GIT_CONFIG_COUNT": str(start + len(pairs))} if pairs else {}
        for number, (key, value) in enumerate(pairs, start):
            variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return variables

    def _read_configuration(self, place: RepositoryPlace) -> Configuration:
        """Return all settings of *place*; git is asked again only if a file has changed."""
        prefixes = ("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG")
        user_variables = [pair for pair in self.environment.items() if pair[0].startswith(prefixes)]
        key = (place, tuple(sorted(user_variables)))
        settings = _KNOWN.get(key)
        if settings is not None and fingerprint_files(settings.files) == settings.marks:
            return settings
        configuration = parse_configuration(
            self.ask(self._ceiling_variable(place)), self.folder, place
        )
        if len(_KNOWN) >= _MAX_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = configuration
        return configuration

    def _ensure_reachable(
        self,
        remote: str,
        configuration: Configuration,
        overrides: GitOverrides,
        place: RepositoryPlace,
    ) -> None:
        for address in configuration.addresses(remote):
            reason = find_address_problem(address, place.top)
            if reason is not None:
                raise ConfigurationError(
                    reason,
                    where=f"remote {remote!r}",
                    hint="use a bare repository outside the project, or the address of a server: "
                    + format_other_command("git", "remote", "set-url", remote, "ADDRESS"),
                )
        for key, value in overrides.refused:
            raise ConfigurationError(
                f"{key} is {value!r}, but you did not trust this project with that",
                where=str(place.common / "config"),
                hint="if you want it, 'sequencer trust' allows it; "
                f"otherwise {format_other_command('git', 'config', '--unset-all', key)}",
            )


def find_address_problem(address: str, top: Path) -> str | None:
    """Return why git may never contact *address* from the work tree *top*; None: it may."""
    helper, scheme = _HELPER.match(address), _SCHEME.match(address)
    if helper is not None:
        return f"{address!r} runs the program 'git-remote-{helper[1]}', which is not allowed"
    path = address
    if scheme is not None and scheme[1].lower() != "file":
        known_schemes = {*TRANSPORTS, "git+ssh", "ssh+git"}
        return (
            None
            if scheme[1].lower() in known_schemes
            else f"{scheme[1]!r} is not one of git's own transports"
        )
    if scheme is not None:
        path = unquote(address[scheme.end() :])
    elif _HOST.match(address):
        return None
    real_path, real_top = os.path.realpath(top / expand_home(path)), os.path.realpath(top)
    is_present = any(os.path.lexists(f"{real_path}{suffix}") for suffix in ("", ".git"))
    if is_present and (real_path == real_top or real_path.startswith(f"{real_top}/")):
        return f"{address!r} is inside the project itself, so its hooks would run at each push"
    return None
