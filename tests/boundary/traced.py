"""What a process and its children asked of the kernel, as ``strace`` wrote it down.

Not promised: what a process did with a descriptor that it was given. The commands that are
watched are given none but their three streams.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "execve,execveat,connect,socket,open,openat,openat2,creat,truncate,unlink,unlinkat,rmdir,"
    "rename,renameat,renameat2,mkdir,mkdirat,link,linkat,symlink,symlinkat,mknod,mknodat,"
    "chmod,fchmodat,chown,lchown,fchownat,utimensat"
)
MARKER = "/nowhere/boundary-"
"""A name that whoever starts commands looks for, to divide the trace."""
_CALL = re.compile(r"^(?P<pid>\d+) +(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>.+)$")
_PARTED = re.compile(r"^(?P<pid>\d+) +(?P<start>\w+\(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<rest>.*)$")
_OPENED = re.compile(r"^\d+<(?P<path>[^>]*)>")
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<text>(?:[^"\\]|\\.)*)"')
_OPENS = {"open", "openat", "openat2", "creat"}
_CHANGES = {
    "truncate", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "mkdir",
    "mkdirat", "link", "linkat", "symlink", "symlinkat", "mknod", "mknodat", "chmod", "fchmodat",
    "chown", "lchown", "fchownat", "utimensat",
}  # fmt: skip
_INTERNET = re.compile(r"AF_INET6?\b")


@functools.cache
def tracer() -> str | None:
    """Return the program, if this machine has it and lets it trace: containers may not."""
    program = shutil.which("strace")
    if program is None:
        return None
    tried = [program, "-f", "--seccomp-bpf", "-o", os.devnull, "true"]
    done = subprocess.run(tried, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return program if done.returncode == 0 else None


def traced(trace: Path) -> list[str]:
    """Return what goes before a command that is watched; *trace* is written."""
    options = ["-f", "--seccomp-bpf", "-y", "-v", "-qq", "-s", "65536", "-e", "signal=none"]
    return [tracer() or "strace", *options, "-e", f"trace={CALLS}", "-o", str(trace)]


@dataclass(slots=True)
class Asked:
    """What was asked between two markers, as far as it was granted."""

    executed: list[tuple[str, str]] = field(default_factory=list)
    """Program, and the whole of its arguments and environment."""
    network: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    """Paths behind all links."""
    written: list[str] = field(default_factory=list)
    """The same, of what was opened for writing, made, removed or changed."""


def asked(trace: Path) -> dict[str, Asked]:
    """Return what was asked in *trace*, by marker."""
    found: dict[str, Asked] = {}
    now = Asked()
    for name, arguments, result in _calls(trace):
        if name in _OPENS and MARKER in arguments:
            now = found.setdefault(arguments.partition(MARKER)[2].partition('"')[0], Asked())
        else:
            _note(now, name, arguments, result)
    return found


def _calls(trace: Path) -> Iterator[tuple[str, str, str]]:
    parted: dict[str, str] = {}
    with trace.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            text = line.rstrip("\n")
            if match := _PARTED.match(text):
                parted[match["pid"]] = match["start"]
                continue
            if match := _RESUMED.match(text):
                text = f"{match['pid']} {parted.pop(match['pid'], '')}{match['rest']}"
            if match := _CALL.match(text):
                yield match["name"], match["arguments"], match["result"]


def _note(now: Asked, name: str, arguments: str, result: str) -> None:
    if name == "socket":
        if _INTERNET.search(arguments):
            now.network.append(arguments)
        return
    if name == "connect":
        # The C library asks the name service's cache, where there is one.
        if "/nscd/" not in arguments:
            now.network.append(arguments)
        return
    if result.startswith("-"):
        return
    if name.startswith("execve"):
        program = _TEXT.search(arguments)
        now.executed.append((program[1] if program else arguments, arguments))
    elif name in _OPENS and (opened := _OPENED.match(result)):
        path = opened["path"].removesuffix("(deleted)")
        now.opened.append(path)
        if name == "creat" or re.search(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", arguments):
            now.written.append(path)
    elif name in _CHANGES:
        now.written += _named(name, arguments)


def _named(name: str, arguments: str) -> Iterator[str]:
    """Yield the paths that a call names; a folder that it has open is told behind all links.

    Not those that are relative to a folder that the call does not name. What a path leads to
    by its links is not asked: by now they may be others.
    """
    paths = list(_PATH.finditer(arguments))
    # What a link says is not touched by making it.
    for found in paths[-1:] if name.startswith("symlink") else paths:
        path = os.path.join(found["folder"] or "", found["text"])  # noqa: PTH118 (text may be absolute)
        if path.startswith("/"):
            yield path
