"""Servers that cut the line: `git receive-pack`, wrapped, for remotes that are a path.

The wrapper stands where ``remote.NAME.receivepack`` names the server's program. It writes
down what it did to each push, so that a test can see that its fault came about.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.clones import git


class Deed(StrEnum):
    """What a server does to a push."""

    SERVE = "serve"
    CUT_BEFORE = "cut-before"
    """The line breaks before anything has moved."""
    CUT_AFTER = "cut-after"
    """The ref has moved, and the line breaks before that is said."""
    LATER = "later"
    """The line breaks at once; the ref moves a while afterwards, if it still may."""
    HANG = "hang"
    """No answer ever; the ref moves a while afterwards, if it still may."""
    HELD = "held"
    """The line breaks at once; the ref moves when the test says so, if it still may."""
    GONE_BEFORE = "gone-before"
    """The repository is away before anything has moved; see `Server.back`."""
    GONE_AFTER = "gone-after"
    """The ref has moved, and the repository is away before that is said."""


_SCRIPT = r"""#!{python} -IS
import fcntl, json, os, random, subprocess, sys, time

FOLDER, PLAN, RATES, LATER_S = {folder!r}, {plan!r}, {rates!r}, {later_s!r}
ARGV = ["git", "receive-pack", sys.argv[-1]]


def chosen():
    fd = os.open(FOLDER + "/deeds", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    number = os.pread(fd, 10**7, 0).count(b"\n")
    deed = "serve"
    if number < len(PLAN):
        deed = PLAN[number]
    else:
        drawn = random.random()
        for name, share in RATES.items():
            if drawn < share:
                deed = name
                break
            drawn -= share
    os.write(fd, deed.encode() + b"\n")
    os.close(fd)
    return deed


def advertise(server):
    while True:
        size = server.stdout.read(4)
        os.write(1, size)
        if len(size) < 4 or size == b"0000":
            return
        os.write(1, server.stdout.read(int(size, 16) - 4))


def main():
    deed = chosen()
    if deed == "serve":
        os.execvp(ARGV[0], ARGV)
    is_done = deed.endswith("-after")
    taken = None if is_done else subprocess.DEVNULL
    server = subprocess.Popen(ARGV, stdin=taken, stdout=subprocess.PIPE)
    advertise(server)
    if is_done:
        server.stdout.read()
    else:
        server.kill()
    server.wait()
    if deed.startswith("gone"):
        os.rename(ARGV[-1], ARGV[-1] + ".away")
    if is_done or deed.endswith("-before"):
        return
    asked = sys.stdin.buffer.read()
    if os.fork():
        if deed == "hang":
            time.sleep(60)
        os._exit(1)
    os.setsid()
    with open(FOLDER + "/under-way", "a") as noted:
        noted.write("begun\n")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    time.sleep(0 if deed == "held" else LATER_S)
    while deed == "held" and not os.path.exists(FOLDER + "/go"):
        time.sleep(0.005)
    subprocess.run(ARGV, input=asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(FOLDER + "/under-way", "a") as noted:
        noted.write("ended\n")


main()
"""


_RELEASING = """#!/bin/sh
if test -e '{mark}'; then
    touch '{folder}/go'
    until test "$(grep -c begun '{folder}/under-way')" = "$(grep -c ended '{folder}/under-way')"
    do sleep 0.01
    done
fi
exec git {command} "$@"
"""
TOO_OFTEN = 50
"""More pushes of one change than any process tries."""


def serve_by(script: str, command: str, path: Path, clone: Path) -> None:
    """Replace git's *command* in *clone* with *script*, stored at *path*."""
    path.write_text(script)
    path.chmod(0o755)
    git(clone, "config", f"remote.origin.{command.replace('-', '')}", str(path))


@dataclass(frozen=True)
class Server:
    """The wrapper of one bare repository, in *folder*."""

    folder: Path
    plan: Sequence[Deed] = ()
    """What happens to the first pushes, in order."""
    rates: Mapping[Deed, float] = field(default_factory=dict)
    """Which share of the later ones meets what; the rest is served."""
    later_s: float = 0.3

    def install(self, *clones: Path) -> None:
        """Let the pushes of *clones* to their origin go through the wrapper."""
        self.folder.mkdir(parents=True, exist_ok=True)
        script = self.folder / "receive-pack"
        text = _SCRIPT.format(
            python=sys.executable,
            folder=str(self.folder),
            plan=[str(deed) for deed in self.plan],
            rates={str(deed): share for deed, share in self.rates.items()},
            later_s=self.later_s,
        )
        script.write_text(text)
        script.chmod(0o755)
        for clone in clones:
            git(clone, "config", "remote.origin.receivepack", str(script))

    def deeds(self) -> Counter[str]:
        """Return how often it did what."""
        path = self.folder / "deeds"
        return Counter(path.read_text().split() if path.exists() else ())

    def under_way(self) -> int:
        """Return how many pushes may still move something."""
        path = self.folder / "under-way"
        words = path.read_text().split() if path.exists() else []
        return words.count("begun") - words.count("ended")

    def pushes(self) -> int:
        """Return how many pushes reached it."""
        return sum(self.deeds().values())

    def release(self) -> None:
        """Let go on what is held, and wait until it is over."""
        (self.folder / "go").touch()
        while self.under_way():
            time.sleep(0.005)

    def release_in(self, command: str, clone: Path, mark: Path) -> None:
        """Let go on what is held when *clone* needs git's *command* there and *mark* exists."""
        script = _RELEASING.format(folder=self.folder, mark=mark, command=command)
        serve_by(script, command, self.folder / command, clone)

    @staticmethod
    def back(bare: Path) -> None:
        """Put the repository back where it was."""
        bare.with_name(f"{bare.name}.away").rename(bare)
