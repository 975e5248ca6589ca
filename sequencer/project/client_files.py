"""Facts about the files of a project that its agents' clients read, to compare with a record.

A link is listed as a link and is not followed out of the repository. Reading never blocks on a
fifo. Values that may be secrets are replaced by a digest.

Not covered: folders above the repository's root (without a repository: above the project's
folder), and files that a plug-in, a hook or a server loads by itself (``node_modules``, a module).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from sequencer.errors import ConfigurationError
from sequencer.executors.project_files import (
    CLIENTS,
    MAX_SETTINGS_BYTES,
    ProjectFiles,
    Reader,
    files_for,
)
from sequencer.executors.redaction import Redaction
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import expand_home
from sequencer.files.yamlfile import format_key_path
from sequencer.project.named_files import find_possible_paths
from sequencer.project.settings import Settings
from sequencer.project.sources import flatten
from sequencer.project.step_facts import escape_non_ascii, hide_secret, to_json_line
from sequencer.project.trust import fingerprint

MAX_FILES = 500
"""Up to this number, each file of a folder has its own line; more files share one line."""
MAX_LISTED = 50_000
"""Maximum number of files that this one line covers."""
MAX_HASHED_BYTES = 64 * 1024 * 1024
"""How many bytes of these files are compared; beyond that, only sizes and times are."""
MAX_DEPTH = 32
"""Maximum depth of nested folders."""
MAX_KEYS = 400
"""Maximum number of keys in a settings file; in a larger one, any change counts."""
MAX_TEXT = 400
"""Maximum length of a value that is shown; a digest replaces the rest."""
MAX_NAMED = 500
"""Maximum number of words in a settings file that are checked for names of files."""
_NOT_ENTERED = frozenset({"node_modules", "__pycache__", ".git"})
_SECRET = re.compile(
    r"(?i)env|environment|(?:http_?)?headers|.*(?:key|token|secret|password|authorization)"
)
"""Names of keys whose values, including nested ones, are not shown."""
_RULES = frozenset({"permission", "permissions"})
"""Keys whose words are patterns, not commands."""
_AUTO = "auto"
_WORDS = re.compile(rf"(?<![\w-])(?:{'|'.join((*CLIENTS, _AUTO))})(?![\w-])".encode())
_BLANK = Redaction.from_environment({})

Look = tuple[int, ...] | None


class ClientFacts(Struct, frozen=True):
    """The files that one client would read in one folder."""

    lines: frozenset[str]
    """The facts, each starting with the client's name."""
    files: frozenset[str]
    """The existing files, as the facts name them."""
    looks: Mapping[str, Look]
    """The `stat_signature` of each path that could appear, change or be removed; None: missing."""

    def is_current(self) -> bool:
        """Return whether nothing has changed since the scan; costs one `stat` per path."""
        return all(stat_signature(path) == look for path, look in self.looks.items())


def stat_signature(path: str) -> Look:
    """Return a value that differs after the file or folder *path* has changed; None: missing."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - before each attempt
    except (OSError, ValueError):
        return None
    times = facts.st_mtime_ns, facts.st_ctime_ns
    return facts.st_dev, facts.st_ino, facts.st_mode, facts.st_size, *times


def find_clients(settings: Settings, texts: Iterable[bytes]) -> dict[str, ProjectFiles]:
    """Return the clients that a project's agents may use, and the files that each one reads.

    *texts* are its workflows. The choice of a step's agent needs no trust, so every word that
    could name an agent counts; ``auto`` may be any client.
    """
    words = _strings([value for key, value in settings.written.items() if key != "agents"])
    choice = settings.agent
    words |= {choice.default, *choice.roles.values(), *choice.prompts.values(), *choice.fallback}
    for text in texts if _AUTO not in words else ():
        # An escape sequence may spell any name.
        words |= {*CLIENTS} if b"\\" in text else {word.decode() for word in _WORDS.findall(text)}
    is_any = _AUTO in words and _AUTO not in settings.agents
    clients: dict[str, ProjectFiles] = {}
    for kind in CLIENTS:
        entries = [agent.options for agent in settings.agents.values() if agent.kind == kind]
        if kind not in settings.agents and (is_any or kind in words):
            entries.append({})
        for options in entries:
            if (project_files := files_for(kind, options)) is not None:
                clients[kind] = project_files
    return clients


def _strings(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    children = value.values() if isinstance(value, dict) else value
    return set().union(*map(_strings, children)) if isinstance(value, list | dict) else set()


def find_client(line: str) -> str | None:
    """Return the client that the fact *line* is about, or None.

    >>> find_client("claude, file .mcp.json: sha256 00"), find_client("limits.cost_usd: 5")
    ('claude', None)
    """
    name, comma, _ = line.partition(", ")
    return name if comma and name in CLIENTS else None


def get_line_file(line: str) -> str:
    """Return the file that the fact *line* of a client is about.

    >>> get_line_file("claude, file .mcp.json, mcpServers.x.args: []")
    '.mcp.json'
    """
    return re.split(r"[,:] ", line.partition(", ")[2].partition(" ")[2], maxsplit=1)[0]


def scan(client: str, reads: ProjectFiles, folder: Path, below: Path | None = None) -> ClientFacts:
    """Return the facts about the files that *client* would read in *folder* and its parents.

    In a work tree inside the project's folder (*below*), the search ends before that folder, even
    if the repository's root is elsewhere: claude looks for ``.mcp.json`` in all parents.
    """
    scanner = _Scanner(client, reads, folder, below)
    scanner.scan_all()
    return ClientFacts(frozenset(scanner.lines), frozenset(scanner.files), scanner.looks)


def folders_upward(folder: Path) -> list[Path]:
    """Return *folder* and its parents up to the root of its repository.

    The user's home folder is left out: its files belong to the user, even in a repository.
    """
    candidates = [folder, *folder.parents]
    home = Path(os.path.realpath(expand_home("~")))
    for number, candidate in enumerate(candidates):
        if os.path.lexists(candidate / ".git"):
            return [folder, *(parent for parent in candidates[1 : number + 1] if parent != home)]
    return [folder]


class _Scanner:
    def __init__(
        self,
        client: str,
        project_files: ProjectFiles,
        folder: Path,
        project_dir: Path | None = None,
    ) -> None:
        self._client = client
        self._reads = project_files
        self._folder = real_folder = Path(os.path.realpath(folder))
        self._folders = folders_upward(real_folder)
        if (
            project_dir is not None
            and (top := Path(os.path.realpath(project_dir))) in real_folder.parents
        ):
            self._folders = [real_folder, *real_folder.parents[: real_folder.parents.index(top)]]
        self._top = self._folders[-1]
        self.lines: set[str] = set()
        self.files: set[str] = set()
        self.looks: dict[str, Look] = {}

    def scan_all(self) -> None:
        for folder in self._folders:
            for name, reader in self._reads.files.items():
                if self._exists(folder, name):
                    self._scan_file(folder / name, reader)
            for name in self._reads.folders:
                if self._exists(folder, name):
                    self._scan_tree(folder / name)

    def _exists(self, folder: Path, name: str) -> bool:
        """Return whether *name* exists in *folder*, and record the looks along its path.

        A folder's own look changes when something appears in it, so recording the folder is
        enough for a missing file.
        """
        path = folder
        for depth, part in enumerate(name.split("/")):
            path /= part
            look = self.looks.get(str(path)) or stat_signature(str(path))
            if look is not None or depth == 0:
                self.looks[str(path)] = look
            if look is None:
                return False
        return True

    def _add(self, path: Path, text: str, key: str = "", *, kind: str = "file") -> None:
        self.lines.add(f"{self._client}, {kind} {self._format_path(path)}{key}: {text}")

    def _format_path(self, path: Path) -> str:
        return _shorten(escape_non_ascii(os.path.relpath(path, self._folder)))

    def _resolve_inside(self, path: Path) -> Path | None:
        """Return the real path of *path*, or None if it is outside the repository; note links."""
        real_path = Path(os.path.realpath(path))
        if real_path == path:
            return path
        is_inside = real_path.is_relative_to(self._top)
        target = os.path.relpath(real_path, self._folder) if is_inside else str(real_path)
        self._add(path, f"leads to {to_json_line(target)}")
        return real_path if is_inside else None

    def _scan_file(self, path: Path, reader: Reader | None) -> None:
        real_path = self._resolve_inside(path)
        look = self.looks.get(str(path))
        if real_path is None or look is None or stat.S_ISDIR(look[2]):
            return
        self.files.add(self._format_path(path))
        if reader is None or not self._scan_settings(path, real_path, reader):
            self._add_fingerprint(path, real_path)

    def _scan_settings(self, path: Path, real_path: Path, reader: Reader) -> bool:
        """Add a fact for each acting key of a file; return False if any change must count."""
        try:
            keys = reader(read_bytes(real_path, MAX_SETTINGS_BYTES))
            acting_keys = list(islice(self._find_acting_keys(keys), MAX_KEYS + 1))
            facts = {
                _shorten(escape_non_ascii(key)): _shorten(to_json_line(value))
                for key, value, _ in acting_keys
            }
        except (ConfigurationError, ValueError, RecursionError):
            return False
        # Two keys with the same text would hide each other.
        if len(facts) != len(acting_keys) or len(facts) > MAX_KEYS:
            return False
        for key, text in facts.items():
            self._add(path, text, f", {key}")
        self._scan_named_files(set().union(*(words for _, _, words in acting_keys)))
        return True

    def _add_fingerprint(self, path: Path, real_path: Path) -> None:
        self._add(path, fingerprint(real_path) or "no regular file that can be read")

    def _find_acting_keys(self, keys: Mapping[str, Any]) -> Iterator[tuple[str, Any, set[str]]]:
        """Yield (key, value without secrets, texts that may be commands) for each acting key."""
        for path, value in flatten(dict(keys), ()):
            names = [str(part) for part in path]
            prefixes = {".".join(names[:length]) for length in range(1, len(names) + 1)}
            if not prefixes & self._reads.free:
                commands = set() if _RULES & set(names) else _strings(value)
                is_secret = any(map(_SECRET.fullmatch, names))
                yield format_key_path(path), _hide_secrets(value, is_secret=is_secret), commands

    def _scan_named_files(self, commands: set[str]) -> None:
        """Add facts for the files of the repository that *commands* name."""
        candidates = sorted(set(find_possible_paths(sorted(commands))))
        if len(candidates) > MAX_NAMED:
            self._add(self._folder, f"more than {MAX_NAMED} words, which are not looked for")
            return
        for word in candidates:
            if not word or "\0" in word or word.endswith("/"):
                continue
            path = Path(os.path.normpath(self._folder / word))
            if not path.is_relative_to(self._top):
                continue
            look = stat_signature(str(path))
            if look is not None and stat.S_ISDIR(look[2]):
                continue
            if look is not None or ("/" in word and not word.startswith("-")):
                # Record a missing file too: a command would run it once it exists.
                self.looks[str(path)] = look
            if look is not None and (real_path := self._resolve_inside(path)) is not None:
                self._add_fingerprint(path, real_path)

    def _scan_tree(self, folder: Path) -> None:
        paths: list[Path] = []
        entered_folders: set[str] = set()
        for path in self._list_files(folder, entered_folders):
            paths.append(path)
            if len(paths) > MAX_LISTED:
                break
        if len(paths) <= MAX_FILES:
            for path in paths:
                self._scan_file(path, None)
            return
        is_whole = len(paths) <= MAX_LISTED
        text = f"{len(paths)} files" if is_whole else f"the first {MAX_LISTED} files"
        self._add(
            folder, f"{text} by {self._digest_files(folder, paths[:MAX_LISTED])}", kind="folder"
        )

    def _digest_files(self, folder: Path, paths: Iterable[Path]) -> str:
        """Return what *paths* in *folder* are compared by, and its digest.

        A modification time can be forged, a change time can't. But the change time differs in
        each copy of a project, so it counts only for the files that are too large to be read.
        """
        digest, left_bytes, unread = hashlib.sha256(), MAX_HASHED_BYTES, 0
        for path in paths:
            look, text = self.looks.get(str(path)), ""
            real_path = Path(os.path.realpath(path)) if path.is_symlink() else path
            if real_path != path:
                text = f"leads to {os.path.relpath(real_path, path.parent)} "
            if look is not None and real_path.is_relative_to(self._top):
                _, _, mode, size, *times = look
                if not stat.S_ISREG(mode) or size <= left_bytes:
                    left_bytes -= size if stat.S_ISREG(mode) else 0
                    text += fingerprint(real_path) or "no regular file that can be read"
                else:
                    unread += 1
                    text += f"{size} bytes, of {times}"
            # No name and no target of a link has a NUL, so none can pass for two entries.
            digest.update(os.fsencode(f"{os.path.relpath(path, folder)}\0{text}\0"))
        note = f", {unread} of them by sizes and times" if unread else ""
        return f"names and contents{note}: sha256 {digest.hexdigest()}"

    def _list_files(
        self, folder: Path, entered_folders: set[str], depth: int = 0
    ) -> Iterator[Path]:
        """Yield the files under *folder*; each folder is entered once, so link cycles end."""
        real_folder = os.path.realpath(folder)
        if real_folder in entered_folders or not Path(real_folder).is_relative_to(self._top):
            if real_folder not in entered_folders:
                self._resolve_inside(folder)
            return
        if depth > MAX_DEPTH:
            text = f"more than {MAX_DEPTH} folders deep, and not compared"
            self._add(folder, text, kind="folder")
            return
        entered_folders.add(real_folder)
        self.looks.setdefault(str(folder), stat_signature(str(folder)))
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not entries
        except OSError:
            return
        for name in names:
            if name in _NOT_ENTERED:
                continue
            path = folder / name
            look = self.looks[str(path)] = stat_signature(str(path))
            if look is not None and stat.S_ISDIR(look[2]):
                yield from self._list_files(path, entered_folders, depth + 1)
            elif look is not None:
                yield path


def _hide_secrets(value: Any, *, is_secret: bool) -> Any:
    """Return *value* with each part that may be a secret replaced by a digest."""
    # One check of all items together, because there may be thousands of them.
    text = "\n".join(_strings(value))
    looks_secret = _BLANK.hide_text(text) != text
    return _hide_parts(value, is_secret=is_secret, looks_secret=looks_secret)


def _hide_parts(value: Any, *, is_secret: bool, looks_secret: bool) -> Any:
    if isinstance(value, dict):
        return {
            key: _hide_parts(
                child,
                is_secret=is_secret or _SECRET.fullmatch(str(key)) is not None,
                looks_secret=looks_secret,
            )
            for key, child in value.items()
        }
    if isinstance(value, list):
        return [_hide_parts(item, is_secret=is_secret, looks_secret=looks_secret) for item in value]
    text = value if isinstance(value, str) else to_json_line(value)
    if is_secret or (looks_secret and _BLANK.hide_text(text) != text):
        return hide_secret(text)
    return value


def _shorten(text: str) -> str:
    """Return *text*, or its start and a digest if it is too long to show.

    The result is compared with records of trust, so its form must not change.
    """
    if len(text) <= MAX_TEXT:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[:MAX_TEXT]}… ({len(text)} letters, sha256 {digest})"
