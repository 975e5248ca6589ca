"""What the clients of a project's agents would read of it, as facts to compare.

A link is shown as one and not followed out of the repository; nothing waits for a fifo. Values
that may be secrets are hidden, with a digest to compare them by.

Not covered: folders above the repository's root; without a repository, above the project's
folder; what a plug-in, a hook or a server loads by itself (``node_modules``, a module).
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
from sequencer.files.yamlfile import dotted
from sequencer.project.named_files import named
from sequencer.project.settings import Settings
from sequencer.project.sources import flatten
from sequencer.project.step_facts import ascii_of, hidden, text_of
from sequencer.project.trust import fingerprint

MAX_FILES = 500
"""Of one folder, each with a line of its own; of more there is one line for all."""
MAX_LISTED = 50_000
"""What that line is about at most."""
MAX_DEPTH = 32
"""Folders within one another that are entered."""
MAX_KEYS = 400
"""Of one file of settings; a file with more counts as a whole."""
MAX_TEXT = 400
"""Letters of one value that are shown; of a longer one the rest is a digest."""
MAX_NAMED = 500
"""Words of one file of settings that may name a file."""
_NOT_ENTERED = frozenset({"node_modules", "__pycache__", ".git"})
_SECRET = re.compile(
    r"(?i)env|environment|(?:http_?)?headers|.*(?:key|token|secret|password|authorization)"
)
"""Names of keys whose value, or what is below them, is not shown."""
_RULES = frozenset({"permission", "permissions"})
"""Keys whose words are patterns, and no commands."""
_AUTO = "auto"
_WORDS = re.compile(rf"(?<![\w-])(?:{'|'.join((*CLIENTS, _AUTO))})(?![\w-])".encode())
_BLANK = Redaction.of({})

Look = tuple[int, ...] | None


class ClientFacts(Struct, frozen=True):
    """What one client would read of one folder."""

    lines: frozenset[str]
    """The facts, each beginning with the client's name."""
    files: frozenset[str]
    """The files that are there, as the facts name them."""
    looks: Mapping[str, Look]
    """How every path looked where something could appear, change or go; None: nothing there."""

    def is_current(self) -> bool:
        """Return whether everything looks as it did; one `stat` for each path."""
        return all(look_of(path) == look for path, look in self.looks.items())


def look_of(path: str) -> Look:
    """Return what tells whether the file or folder *path* is another one, or None."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - before each attempt
    except (OSError, ValueError):
        return None
    times = facts.st_mtime_ns, facts.st_ctime_ns
    return facts.st_dev, facts.st_ino, facts.st_mode, facts.st_size, *times


def clients_of(settings: Settings, texts: Iterable[bytes]) -> dict[str, ProjectFiles]:
    """Return the clients that agents of a project may be, and what each reads of it.

    *texts* are its workflows. Which agent performs a step is free, so whatever a file says
    where an agent could be named counts; ``auto`` may be any of them.
    """
    said = _strings([value for key, value in settings.written.items() if key != "agents"])
    choice = settings.agent
    said |= {choice.default, *choice.roles.values(), *choice.prompts.values(), *choice.fallback}
    for text in texts if _AUTO not in said else ():
        # A backslash may spell a name in another way.
        said |= {*CLIENTS} if b"\\" in text else {word.decode() for word in _WORDS.findall(text)}
    is_any = _AUTO in said and _AUTO not in settings.agents
    found: dict[str, ProjectFiles] = {}
    for kind in CLIENTS:
        entries = [agent.options for agent in settings.agents.values() if agent.kind == kind]
        if kind not in settings.agents and (is_any or kind in said):
            entries.append({})
        for options in entries:
            if (reads := files_for(kind, options)) is not None:
                found[kind] = reads
    return found


def _strings(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    below = value.values() if isinstance(value, dict) else value
    return set().union(*map(_strings, below)) if isinstance(value, list | dict) else set()


def client_of(line: str) -> str | None:
    """Return the client that the fact *line* is about; None: none.

    >>> client_of("claude, file .mcp.json: sha256 00"), client_of("limits.cost_usd: 5")
    ('claude', None)
    """
    name, comma, _ = line.partition(", ")
    return name if comma and name in CLIENTS else None


def file_of(line: str) -> str:
    """Return the file that the fact *line* of a client is about.

    >>> file_of("claude, file .mcp.json, mcpServers.x.args: []")
    '.mcp.json'
    """
    return re.split(r"[,:] ", line.partition(", ")[2].partition(" ")[2], maxsplit=1)[0]


def scan(client: str, reads: ProjectFiles, folder: Path, below: Path | None = None) -> ClientFacts:
    """Return what *client* would read of *folder*, and of those above it.

    In a work tree that is *below* the project's folder these end before that one, whether or
    not the repository does: claude looks for ``.mcp.json`` in all of them.
    """
    scanner = _Scanner(client, reads, folder, below)
    scanner.look_at_everything()
    return ClientFacts(frozenset(scanner.lines), frozenset(scanner.files), scanner.looks)


def folders_upward(folder: Path) -> list[Path]:
    """Return *folder* and those above it up to the root of its repository.

    The user's home folder is left out: what is there is the user's own, repository or not.
    """
    found = [folder, *folder.parents]
    home = Path(os.path.realpath(expand_home("~")))
    for number, each in enumerate(found):
        if os.path.lexists(each / ".git"):
            return [folder, *(above for above in found[1 : number + 1] if above != home)]
    return [folder]


class _Scanner:
    def __init__(
        self, client: str, reads: ProjectFiles, folder: Path, below: Path | None = None
    ) -> None:
        self._client = client
        self._reads = reads
        self._folder = here = Path(os.path.realpath(folder))
        self._folders = folders_upward(here)
        if below is not None and (top := Path(os.path.realpath(below))) in here.parents:
            self._folders = [here, *here.parents[: here.parents.index(top)]]
        self._top = self._folders[-1]
        self.lines: set[str] = set()
        self.files: set[str] = set()
        self.looks: dict[str, Look] = {}

    def look_at_everything(self) -> None:
        for here in self._folders:
            for name, reader in self._reads.files.items():
                if self._is_there(here, name):
                    self._file(here / name, reader)
            for name in self._reads.folders:
                if self._is_there(here, name):
                    self._tree(here / name)

    def _is_there(self, here: Path, name: str) -> bool:
        """Return whether *name* is in *here*.

        A folder that is there tells by its own look when something appears in it.
        """
        path = here
        for depth, part in enumerate(name.split("/")):
            path /= part
            look = self.looks.get(str(path)) or look_of(str(path))
            if look is not None or depth == 0:
                self.looks[str(path)] = look
            if look is None:
                return False
        return True

    def _tell(self, path: Path, text: str, key: str = "", *, what: str = "file") -> None:
        self.lines.add(f"{self._client}, {what} {self._shown(path)}{key}: {text}")

    def _shown(self, path: Path) -> str:
        return _short(ascii_of(os.path.relpath(path, self._folder)))

    def _inside(self, path: Path) -> Path | None:
        """Return what is read for *path*; None: it is outside of the repository."""
        real = Path(os.path.realpath(path))
        if real != path:
            is_inside = real.is_relative_to(self._top)
            shown = os.path.relpath(real, self._folder) if is_inside else str(real)
            self._tell(path, f"leads to {text_of(shown)}")
            return real if is_inside else None
        return path

    def _file(self, path: Path, reader: Reader | None) -> None:
        real = self._inside(path)
        look = self.looks.get(str(path))
        if real is None or look is None or stat.S_ISDIR(look[2]):
            return
        self.files.add(self._shown(path))
        if reader is None or not self._settings(path, real, reader):
            self._whole(path, real)

    def _settings(self, path: Path, real: Path, reader: Reader) -> bool:
        """Tell each acting key of a file; return False where it has to count as a whole."""
        try:
            keys = reader(read_bytes(real, MAX_SETTINGS_BYTES))
            found = list(islice(self._acting(keys), MAX_KEYS + 1))
            told = {_short(ascii_of(key)): _short(text_of(value)) for key, value, _ in found}
        except (ConfigurationError, ValueError, RecursionError):
            return False
        # Of two keys that are written alike one would hide the other.
        if len(told) != len(found) or len(told) > MAX_KEYS:
            return False
        for key, text in told.items():
            self._tell(path, text, f", {key}")
        self._named(set().union(*(words for _, _, words in found)))
        return True

    def _whole(self, path: Path, real: Path) -> None:
        self._tell(path, fingerprint(real) or "no regular file that can be read")

    def _acting(self, keys: Mapping[str, Any]) -> Iterator[tuple[str, Any, set[str]]]:
        """Yield key, value without secrets, and texts that may be commands, of all that acts."""
        for path, value in flatten(dict(keys), ()):
            names = [str(part) for part in path]
            prefixes = {".".join(names[:length]) for length in range(1, len(names) + 1)}
            if not prefixes & self._reads.free:
                commands = set() if _RULES & set(names) else _strings(value)
                is_secret = any(map(_SECRET.fullmatch, names))
                yield dotted(path), _hidden(value, is_secret=is_secret), commands

    def _named(self, said: set[str]) -> None:
        """Tell the files of the repository that the commands in *said* name."""
        candidates = sorted(set(named(sorted(said))))
        if len(candidates) > MAX_NAMED:
            self._tell(self._folder, f"more than {MAX_NAMED} words, which are not looked for")
            return
        for word in candidates:
            if not word or "\0" in word or word.endswith("/"):
                continue
            path = Path(os.path.normpath(self._folder / word))
            if not path.is_relative_to(self._top):
                continue
            look = look_of(str(path))
            if look is not None and stat.S_ISDIR(look[2]):
                continue
            if look is not None or ("/" in word and not word.startswith("-")):
                # Also one that is not there yet: a command would run it once it is.
                self.looks[str(path)] = look
            if look is not None and (real := self._inside(path)) is not None:
                self._whole(path, real)

    def _tree(self, folder: Path) -> None:
        found: list[Path] = []
        seen: set[str] = set()
        for path in self._entries(folder, seen):
            found.append(path)
            if len(found) > MAX_LISTED:
                break
        if len(found) <= MAX_FILES:
            for path in found:
                self._file(path, None)
            return
        digest = hashlib.sha256()
        for path in found[:MAX_LISTED]:
            look = self.looks.get(str(path)) or ()
            line = f"{os.path.relpath(path, folder)}\0{look[3:5]}\n"
            digest.update(line.encode("utf-8", "replace"))
        is_whole = len(found) <= MAX_LISTED
        text = f"{len(found)} files" if is_whole else f"the first {MAX_LISTED} files"
        text += f" by names, sizes and times: sha256 {digest.hexdigest()}"
        self._tell(folder, text, what="folder")

    def _entries(self, folder: Path, seen: set[str], depth: int = 0) -> Iterator[Path]:
        """Yield the files below *folder*; each folder is entered once, so that links end."""
        real = os.path.realpath(folder)
        if real in seen or not Path(real).is_relative_to(self._top):
            if real not in seen:
                self._inside(folder)
            return
        if depth > MAX_DEPTH:
            text = f"more than {MAX_DEPTH} folders deep, and not compared"
            self._tell(folder, text, what="folder")
            return
        seen.add(real)
        self.looks.setdefault(str(folder), look_of(str(folder)))
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 - names, not entries
        except OSError:
            return
        for name in names:
            if name in _NOT_ENTERED:
                continue
            path = folder / name
            look = self.looks[str(path)] = look_of(str(path))
            if look is not None and stat.S_ISDIR(look[2]):
                yield from self._entries(path, seen, depth + 1)
            elif look is not None:
                yield path


def _hidden(value: Any, *, is_secret: bool) -> Any:
    """Return *value* with a digest in the place of whatever may be a secret in it."""
    # Looked at once, all together, since there may be thousands of items.
    text = "\n".join(_strings(value))
    looks_secret = _BLANK.hide_text(text) != text
    return _covered(value, is_secret=is_secret, looks_secret=looks_secret)


def _covered(value: Any, *, is_secret: bool, looks_secret: bool) -> Any:
    if isinstance(value, dict):
        return {
            key: _covered(
                below,
                is_secret=is_secret or _SECRET.fullmatch(str(key)) is not None,
                looks_secret=looks_secret,
            )
            for key, below in value.items()
        }
    if isinstance(value, list):
        return [_covered(each, is_secret=is_secret, looks_secret=looks_secret) for each in value]
    text = value if isinstance(value, str) else text_of(value)
    if is_secret or (looks_secret and _BLANK.hide_text(text) != text):
        return hidden(text)
    return value


def _short(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{text[:MAX_TEXT]}… ({len(text)} letters, sha256 {digest})"
