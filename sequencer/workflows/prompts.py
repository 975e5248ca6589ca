"""Reads prompt files by name and fills in their templates.

No name leads to a file outside the prompts folder. A name is relative to the folder and must be
spelled exactly like the directory entry, so that a project uses the same files on a system that
ignores case. Links are followed if they end inside the folder. Nothing here blocks: a fifo is
opened without waiting for a writer, and refused. Templates are filled in one pass: inserted text
is not searched for more templates.

Not promised: safety from a person who can write to the prompts folder while it is read; they
could write the prompt itself.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from sequencer.errors import ConfigurationError, StepFailed, UnknownName, UnsafePath
from sequencer.model.answers import read_last_object
from sequencer.model.whole_numbers import parse_whole_number

MAX_NAME_CHARS = 300
MAX_PROMPT_BYTES = 5 * 1024 * 1024
SETTLED_NS = 2_000_000_000
"""A file that was changed more recently than this is read again at each step."""
MAX_LISTED = 200
"""An error lists at most this many prompts; a folder of thousands would bury the message."""


def add_default_suffix(name: str) -> str:
    """Return *name*, with ``.md`` added if it has no suffix.

    >>> add_default_suffix("main"), add_default_suffix("team/plan.txt")
    ('main.md', 'team/plan.txt')
    """
    return name if PurePosixPath(name).suffix else f"{name}.md"


def relative_name(prompts_dir: Path, name: str) -> str:
    """Return *name* relative to *prompts_dir*, with its suffix, so that names can be compared.

    ``prompts/main.md`` means ``main.md``: files of hoidn/orchestration use both.

    >>> relative_name(Path("/p/prompts"), "prompts/main")
    'main.md'

    Raises:
        UnsafePath: the name could lead to a file outside the folder, or is not a file name.
    """
    _ensure_safe(prompts_dir, name)
    parts = name.split("/")
    if len(parts) > 1 and parts[0] == prompts_dir.name:
        parts = parts[1:]
    return add_default_suffix("/".join(parts))


def _read_text(path: Path, name: str) -> str:
    data = _read_regular(path, name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(
            f"the prompt is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}",
            where=f"{path}:{line}",
            hint="save the file as UTF-8",
        ) from error
    return text.removeprefix("\ufeff")


Mark = tuple[int, int, int, int, int]
"""Facts of a file that change when its content changes or another file replaces it."""


class _CachedPrompt(Struct, frozen=True):
    text: str
    path: str
    """The path before links are resolved."""
    target: Path
    """The path after links were resolved."""
    mark: Mark
    is_settled: bool


class PromptReader:
    """Reads the prompts of one folder; a prompt is read again only if it has changed."""

    def __init__(self, prompts_dir: Path) -> None:
        """Read prompts under *prompts_dir*."""
        self.folder = prompts_dir
        self._cache: dict[str, _CachedPrompt] = {}

    def read(self, name: str) -> str:
        """Return the current text of the prompt *name*.

        Raises:
            UnsafePath: the name or its link leaves the folder, or it is not a regular file.
            UnknownName: there is no such file; the existing ones are listed.
            ConfigurationError: the file can't be read, is too large, or is not UTF-8.
        """
        cache_entry, started_ns = self._cache.get(name), time.time_ns()
        if cache_entry is not None and (mark := _fingerprint(cache_entry.path)) == cache_entry.mark:
            if cache_entry.is_settled:
                return cache_entry.text
            # The same file, but its content may have changed too soon for its times to show it.
            path, target = cache_entry.path, cache_entry.target
        else:
            path = os.path.join(self.folder, relative_name(self.folder, name))  # noqa: PTH118
            mark, target = _fingerprint(path), prompt_path(self.folder, name)
        text = _read_text(target, name)
        if mark is not None:
            # Two changes within one tick of the file system's clock have the same mark.
            is_settled = max(mark[2:4]) < started_ns - SETTLED_NS
            self._cache[name] = _CachedPrompt(text, path, target, mark, is_settled)
        return text


def _fingerprint(path: str) -> Mark | None:
    try:
        info = os.stat(path)  # noqa: PTH116 (on every step's path)
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def prompt_path(prompts_dir: Path, name: str) -> Path:
    """Return the path of the prompt *name* with all links resolved.

    Raises:
        UnsafePath: see `PromptReader.read`.
        UnknownName: there is no such file.
        ConfigurationError: a folder can't be read, so it is not known whether there is one.
    """
    key = relative_name(prompts_dir, name)
    folder = Path(os.path.realpath(prompts_dir))
    if not _is_spelled_exactly(folder, key):
        raise UnknownName("prompt", key, existing_prompts(prompts_dir), where=str(prompts_dir))
    # realpath, not Path.resolve, which raises for a loop of links.
    target = Path(os.path.realpath(folder / key))
    if not target.is_relative_to(folder):
        raise UnsafePath(
            f"prompt {key!r} is a link to {target}, outside the prompts folder",
            where=str(prompts_dir),
            hint="copy the file into the folder",
        )
    if not _exists(target):
        raise UnknownName("prompt", key, existing_prompts(prompts_dir), where=str(prompts_dir))
    return target


def existing_prompts(prompts_dir: Path) -> list[str]:
    """Return the names of the files under *prompts_dir*, at most 200, without hidden files."""
    prompts: list[str] = []
    for folder, folders, files in os.walk(prompts_dir):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if len(prompts) >= MAX_LISTED:
                return prompts
            if not name.startswith("."):
                prompts.append((Path(folder) / name).relative_to(prompts_dir).as_posix())
    return prompts


def _ensure_safe(prompts_dir: Path, name: str) -> None:
    problem = None
    if not name or len(name) > MAX_NAME_CHARS:
        problem = f"has {len(name)} characters; 1 to {MAX_NAME_CHARS} are allowed"
    elif not name.isprintable() or "\\" in name:
        problem = "contains a control character or a backslash"
    elif name.startswith("/"):
        problem = "is an absolute path"
    elif any(part in ("", ".", "..") for part in name.split("/")):
        problem = "has an empty part, '.' or '..' in it"
    if problem:
        shown_name = ascii(name if len(name) <= MAX_NAME_CHARS else f"{name[:40]}…")
        raise UnsafePath(
            f"prompt name {shown_name} {problem}",
            where=str(prompts_dir),
            hint="name a file below the prompts folder, such as 'main.md' or 'team/plan.md'",
        )


def _is_spelled_exactly(folder: Path, key: str) -> bool:
    path = folder
    for part in key.split("/"):
        try:
            has_entry = any(entry.name == part for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _unreadable_error("the folder of the prompt", path, error) from error
        if not has_entry:
            return False
        path /= part
    return True


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        # Most link cycles were found before; a path that still leads into one is not a file.
        if error.errno == errno.ELOOP:
            return False
        raise _unreadable_error("the prompt", path, error) from error
    return True


def _unreadable_error(what: str, path: Path, error: OSError) -> ConfigurationError:
    """Return the error for *what*; a step must not run without a prompt because of it."""
    return ConfigurationError(
        f"{what} can't be read: {error.strerror}",
        where=str(path),
        hint="make it readable for the user who runs this (chmod u+rX)",
    )


def _read_regular(path: Path, name: str) -> bytes:
    try:
        # Without O_NONBLOCK, opening a fifo would wait for a writer forever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        # A loop of links and a socket can't be opened.
        if not stat.S_ISREG(path.lstat().st_mode):
            raise _not_regular_error(path, name) from error
        raise _unreadable_error("the prompt", path, error) from error
    # Checked first: fdopen refuses the descriptor of a folder but does not close it.
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise _not_regular_error(path, name)
    with os.fdopen(fd, "rb") as file:
        # One byte more than its size: a file that is being written may have grown.
        data = file.read(min(info.st_size, MAX_PROMPT_BYTES) + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise ConfigurationError(
            f"the prompt has more than {MAX_PROMPT_BYTES} bytes",
            where=str(path),
            hint="let the agent read the rest from a file that the prompt names",
        )
    return data


def _not_regular_error(path: Path, name: str) -> UnsafePath:
    return UnsafePath(f"prompt {name!r} is not a regular file", where=str(path))


ROOTS = ("request", "output", "steps", "feedback", "validation", "run")
"""First parts of template paths in the prompts of procedures."""
GRAPH_ROOTS = ("state", "output", "nodes", "input")
"""First parts of template paths in the prompts of graphs."""
_TEMPLATE = re.compile(r"\{\{\s*([A-Za-z_][\w.\-]*)\s*\}\}")
MAX_DEPTH = 10


class MissingValue(StepFailed):
    """A template names a value that does not exist; no agent was run."""


def iter_template_paths(text: str, roots: Collection[str] = ROOTS) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the templates in *text*, in order.

    >>> list(iter_template_paths("{{request.title}} {{ other }} {{output}}"))
    [('request', 'title'), ('output',)]
    """
    for match in _TEMPLATE.finditer(text):
        path = tuple(match[1].split("."))
        if path[0] in roots:
            yield path


def render(
    text: str, value_of: Callable[[tuple[str, ...]], Any], roots: Collection[str] = ROOTS
) -> str:
    """Return *text* with each template replaced by the value that *value_of* has for its path.

    Text is inserted unchanged, None as nothing, everything else as JSON on one line.

    >>> render("{{output}}, {{other}}", {("output",): "{{run.id}}"}.__getitem__)
    '{{run.id}}, {{other}}'

    Raises:
        MissingValue: *value_of* raised KeyError.
    """

    def fill(match: re.Match[str]) -> str:
        path = tuple(match[1].split("."))
        if path[0] not in roots:
            return match[0]
        try:
            return as_text(value_of(path))
        except KeyError as error:
            raise MissingValue(
                f"the prompt asks for {{{{{match[1]}}}}}, but there is no such value",
                hint=str(error.args[0]) if error.args else None,
            ) from None

    return _TEMPLATE.sub(fill, text)


def as_text(value: Any) -> str:
    """Return *value* as text for a prompt."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def look_up(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at *path* in nested maps and lists.

    Text that contains JSON, even in a fence, is parsed on the way.

    Raises:
        KeyError: there is no such value; the message lists the known keys.
    """
    if len(path) > MAX_DEPTH:
        raise KeyError(f"at most {MAX_DEPTH} parts are looked up")
    for part in path:
        value = get_child(parse_loose_json(value) if isinstance(value, str) else value, part)
    return value


def get_child(value: Any, part: str) -> Any:
    """Return the value inside *value* that *part*, a key or a number from 0, names.

    Raises:
        KeyError: there is no such value; the message lists the known keys.
    """
    if isinstance(value, Mapping):
        if part in value:
            return value[part]
        known_keys = ", ".join(sorted(map(str, value))[:20]) or "nothing"
        raise KeyError(f"there is no {part!r}; known: {known_keys}")
    if isinstance(value, (list, tuple)):
        number = parse_whole_number(part)
        if number is not None and number < len(value):
            return value[number]
        raise KeyError(f"there is no item {part!r}; it has {len(value)} items")
    raise KeyError(f"it has no parts, so there is no {part!r}")


def parse_loose_json(text: str) -> Any:
    r"""Parse *text* as JSON, with or without a fence; else return the last JSON object in it.

    >>> parse_loose_json('I found two:\n```json\n{"bugs": 2}\n```')
    {'bugs': 2}

    Raises:
        KeyError: it is not JSON and contains no JSON object.
    """
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```":  # noqa: PLR2004 - fence, content, fence
        lines = lines[1:-1]
    try:
        return json.loads("\n".join(lines))
    except (ValueError, RecursionError):
        value = read_last_object(text, dict)
    if value is None:
        raise KeyError("the output is not JSON, so nothing can be looked up in it")
    return value
