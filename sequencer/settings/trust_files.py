"""Files of a project that are run or grant something, as facts that can be compared.

Names come from the project's own configuration; nothing is imported, started or followed
out of the project. What is no regular file is passed over: whoever starts it says so.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sequencer.documents.file import leads_out, read_bytes
from sequencer.errors import ConfigurationError

_PROGRAMS = ("argv", "program", "extra_args")
"""Options of an agent that may name a file."""
_FLOW_FOLDERS = ("flows", ".opencode/workflows")
_GRANTING = re.compile(r"(?i)(?:tools|agents)[\"']?\s*:")
_ESCAPED = re.compile(r"\\[xuU]")
_ODD_YAML = re.compile(r"(?m)\\[xuU]|^[ \t-]*\?\s|<<\s*:|[:\[{,-]\s+[&*!]\w+(?![\w*])")
"""Letters spelled in another way, keys apart from their values, and values from elsewhere."""
MAX_BYTES = 64 * 1024 * 1024
"""A larger file is compared by its size and its time of change."""


def text_of(value: Any) -> str:
    """Return *value* on one line of ASCII."""
    # ASCII: what is shown to a person who decides must not look like something else.
    return json.dumps(value, sort_keys=True, default=str)


def ascii_of(text: str) -> str:
    """Return *text* with everything but printable ASCII spelled out."""
    return text.encode("unicode_escape").decode()


def files_of(written: Mapping[str, Any], root: Path) -> Iterator[tuple[str, dict[Path, str]]]:
    """Yield who runs files of the project, and these with their fingerprints."""
    entries = written.get("agents")
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        found: dict[Path, str] = {}
        for option in _PROGRAMS if isinstance(entry, dict) else ():
            value = entry.get(option)
            items = [value] if isinstance(value, str) else value
            for item in _named(items if isinstance(items, list) else []):
                found |= _file(root, item)
        yield f"agents.{name}", found
    hooks = written.get("hooks")
    items = hooks.split(",") if isinstance(hooks, str) else hooks
    if isinstance(items, list):
        yield "hooks", _with_imports(root, [str(item).strip() for item in items])


def _named(items: Sequence[Any]) -> Iterator[str]:
    """Yield what of a command line may be the path of a file."""
    before = None
    for item in map(str, items):
        yield item
        if item.startswith("-") and "=" in item:
            yield item.partition("=")[2]
        if before == "-m" and re.fullmatch(r"[\w.]+", item):
            module = item.replace(".", "/")
            yield from (f"{module}.py", f"{module}/__init__.py", f"{module}/__main__.py")
        before = item


def _file(root: Path, written: str) -> dict[Path, str]:
    """Return the fingerprint of the file of the project that *written* names, if it names one."""
    if not written or "\0" in written or len(written) > 4096:  # noqa: PLR2004 - no path is longer
        return {}
    path = Path(os.path.normpath(root / written))
    if not path.is_relative_to(root):
        return {}
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        return {path: f"leads to {text_of(str(real))}"} if real.is_file() else {}
    what = fingerprint(real)
    return {} if what is None else {real: what}


def fingerprint(path: Path) -> str | None:
    """Return what tells the content of the regular file *path*; None: it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        os.close(fd)
        return None
    with os.fdopen(fd, "rb") as file:
        if facts.st_size > MAX_BYTES:
            return f"{facts.st_size} bytes, of {facts.st_ctime_ns}"
        return f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"


def _with_imports(root: Path, hooks: Sequence[str]) -> dict[Path, str]:
    """Return the fingerprints of *hooks* and of the modules of the project that they import."""
    found: dict[Path, str] = {}
    todo = list(hooks)
    while todo:
        for path, what in _file(root, todo.pop()).items():
            if path not in found:
                found[path] = what
                todo += _imports(path, root)
    return found


def _imports(path: Path, root: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        # Whoever loads it says so.
        return
    here = path.parent.relative_to(root)
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{a.name}" for a in node.names)]
        for name in filter(None, (name.strip(".") for name in names)):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                module = "/".join(parts[:length])
                for base in {Path(), here}:
                    yield str(base / f"{module}.py")
                    yield str(base / module / "__init__.py")


def flow_grants(written: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Yield the tools that files of workflows grant."""
    entries = written.get("workflows")
    named = [
        entry if isinstance(entry, str) else entry.get("file")
        for entry in (entries.values() if isinstance(entries, dict) else ())
        if isinstance(entry, (str, dict))
    ]
    paths = [os.path.normpath(root / os.path.expanduser(name)) for name in named if name]  # noqa: PTH111
    for folder in _FLOW_FOLDERS:
        try:
            names = sorted(os.listdir(root / folder))  # noqa: PTH208 - names, not entries
        except OSError:
            continue
        paths += [str(root / folder / name) for name in names if name.lower().endswith(".md")]
    for path in sorted(set(paths)):
        shown = ascii_of(shown_in(Path(path), root))
        data = _content(Path(path), root)
        yield from (f"steps, file {shown}: {what}" for what in _granted_in(data))


def _content(path: Path, root: Path) -> bytes:
    """Return the content of the workflow *path*; nothing of a file that is never run."""
    try:
        return b"" if leads_out(path, root) else read_bytes(path, MAX_BYTES)
    except ConfigurationError:
        return b""


def _granted_in(data: bytes) -> Iterator[str]:
    """Yield the lines of a workflow's file that may grant a tool, each with its block.

    Where YAML could say it in a way that this does not see, the whole file counts.
    """
    text = data.decode("utf-8", "replace")
    if _GRANTING.search(text) is None and _ESCAPED.search(text) is None:
        return
    if _ODD_YAML.search(text) is not None:
        yield f"sha256 {hashlib.sha256(data).hexdigest()}"
        return
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if _GRANTING.search(line) is not None:
            yield text_of(" ".join(_block(lines, number)))


def _block(lines: Sequence[str], start: int) -> list[str]:
    """Return the line *start* and those behind it that belong to its value."""
    first = lines[start]
    indent, taken = len(first) - len(first.lstrip()), [first.strip()]
    depth = _depth(first)
    for line in lines[start + 1 :]:
        bare = line.lstrip()
        here = len(line) - len(bare)
        if depth <= 0 and (here < indent or (here == indent and not bare.startswith("- "))):
            break
        taken.append(bare.strip())
        depth += _depth(line)
    return taken


def _depth(line: str) -> int:
    return sum(map(line.count, "{[")) - sum(map(line.count, "}]"))


def shown_in(path: Path, root: Path) -> str:
    """Return *path* as it is written in the project."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
