"""Run commands under a tracer, and say what they did that nobody may do unasked."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.boundary.projects import Project
from tests.boundary.traced import Asked, asked, traced, tracer
from tests.boundary.world import ROOT, SECRET, World

LIMIT_S, MAX_MIB, HANGS_S = 10.0, 300.0, 30.0
DONE = (0, 1, 2, 3, 4)
_RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TURNING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
"""Letters that reorder a line; in JSON they are data."""
_SAFE = ("safe.bareRepository=explicit", "core.hooksPath=/dev/null", "core.fsmonitor")
_NETWORK = re.compile(
    r'"(?:fetch|push|pull|clone|ls-remote|submodule|remote-\w+)", (?!"--get-url")'
)
_LIBRARIES = "/sbin/ldconfig"
"""Python asks it where a library is."""
_OWN = ("/dev/null", "/dev/tty", "/proc/self/", "pipe:", "/memfd:")


@dataclass(frozen=True, slots=True)
class Command:
    """One call of the command line in a project."""

    project: Project
    argv: tuple[str, ...]
    codes: tuple[int, ...] = DONE
    variables: tuple[tuple[str, str], ...] = ()
    names: str = ""
    """What its message has to name."""

    def __str__(self) -> str:
        return f"{self.project.folder.name}: {' '.join(self.argv) or 'completion'}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one call did."""

    command: Command
    code: int | None
    cpu_s: float
    mib: float
    printed: str
    asked: Asked
    told: str = ""
    """What of it went to standard error."""

    @property
    def shown(self) -> str:
        """What may steer no terminal: all but a log's own bytes, which `log` gives a pipe."""
        argv = self.command.argv
        return self.told if argv[:1] == ("log",) and "--path" not in argv else self.printed


def look(world: World, commands: list[Command], *, starts: bool = False) -> list[Seen]:
    """Run *commands* one after another, each in an interpreter of its own if it *starts* one."""
    place = world.folder / "seen"
    place.mkdir()
    launcher = world.temporary / "launch.py"
    launcher.write_text("from sequencer.cli import main\nmain()\n")
    plan = {
        "commands": [
            {"folder": str(c.project.workplace), "argv": c.argv, "variables": dict(c.variables)}
            for c in commands
        ],
        "starts": [str(launcher)] if starts else [],
        "limit_s": HANGS_S,
    }
    (place / "plan.json").write_text(json.dumps(plan))
    runner = [sys.executable, "-P", "-m", "tests.boundary.looks", str(place / "plan.json")]
    subprocess.run(
        [*(traced(place / "trace") if tracer() else []), *runner],
        cwd=ROOT,
        env=world.environment(),
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=60 + HANGS_S * len(commands),
    )
    found = asked(place / "trace") if tracer() else {}
    ended = json.loads((place / "ended.json").read_text())
    seen = []
    for n, (command, one) in enumerate(zip(commands, ended, strict=True)):
        out, err = (
            (place / f"{n}.{s}").read_bytes().decode("utf-8", "replace") for s in ("out", "err")
        )
        did = found.get(str(n), Asked())
        seen.append(Seen(command, one["code"], one["cpu_s"], one["mib"], out + err, did, err))
    shutil.rmtree(place)
    return seen


def wrong(world: World, seen: Seen, *, acts: bool = False) -> Iterator[str]:
    """Yield what one call did and should not have; *acts*: what it started is its business."""
    text = seen.printed
    if seen.code is None:
        yield f"hung for {HANGS_S:.0f} s"
    elif seen.code not in seen.command.codes:
        yield f"exit code {seen.code}: {text[-200:]!r}"
    if seen.command.names not in text:
        yield f"does not name {seen.command.names}: {text[-200:]!r}"
    if "Traceback" in text or "this is a bug" in text:
        yield f"a bug: {text[-300:]!r}"
    if seen.cpu_s > LIMIT_S:
        yield f"took {seen.cpu_s:.1f} s of the processor"
    if seen.mib > MAX_MIB:
        yield f"took {seen.mib:.0f} MiB"
    shown = seen.shown
    found = _RAW.search(shown)
    if "--json" not in seen.command.argv:
        found = found or _TURNING.search(shown)
    if found:
        yield f"printed {found[0]!a}: {shown[max(found.start() - 40, 0) : found.end() + 20]!a}"
    if SECRET in text:
        yield "printed a secret"
    yield from outside_calls(world, seen.asked, acts=acts)
    yield from () if acts else own_calls(world, seen.asked)


def outside_calls(world: World, found: Asked, *, acts: bool) -> Iterator[str]:
    """Yield what of other people's was opened, or changed."""
    private = (f"{world.secrets}/", *(str(world.home / n) for n in (".ssh", ".netrc")))
    for path in found.opened:
        if f"{path}/".startswith(private):
            yield f"opened {path}"
    allowed = tuple(map(str, (world.clone, world.temporary, world.canaries, world.home / ".")))
    allowed += (str(world.served),) if acts else ()
    for path in found.written:
        if path.startswith("/") and not path.startswith((*allowed, *_OWN)):
            yield f"wrote {path}"


def own_calls(world: World, found: Asked) -> Iterator[str]:
    """Yield what was executed that is not our own git, and what reached out."""
    for program, arguments in found.executed:
        if reason := _objection(world, program, arguments):
            yield f"{reason}: {arguments[:300]}"
    for call in found.network:
        yield f"reached out: {call[:200]}"


def _objection(world: World, program: str, arguments: str) -> str:
    """Return what is wrong with executing *program*; nothing if it is our own git."""
    if program == sys.executable and f'"{world.temporary}/launch.py"' in arguments:
        return ""
    if program == _LIBRARIES:
        return ""
    if program == shutil.which("git") and not (missing := [s for s in _SAFE if s not in arguments]):
        return "git may reach the network" if _NETWORK.search(arguments) else ""
    if program != shutil.which("git"):
        return "executed"
    return f"git without {', '.join(missing)}"
