"""An agent that writes whatever it can reach, while it runs and after it was ended.

Accepted answers are those of their own attempts, caps hold, gates stay closed, nothing of it
executes unasked. The judge reads a ledger into which each attempt writes a secret of its own.

Not promised, and not judged: what a process that outlives its attempt writes into the
folder of an attempt that runs, because it may list the folders of its own user; and a record
with a right checksum at the journal's end, which is a record. Of both it is judged that
nothing executes and that no command ends otherwise than the documents say.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.boundary.lies import (
    ANSWER,
    CLIENT,
    COSTS,
    HONEST,
    LIES,
    LIMIT,
    NO_LIMIT,
    ON_EVERY_PUSH,
    PRELUDE,
    Lie,
)
from tests.boundary.world import ROOT, SECRET, World, differences
from tests.forked import Forked
from tests.long.report import Report, Size

DOCUMENTED = (0, 1, 2, 3, 4, 75)
LIMIT_S = 60.0
HAUNT = """
while True:
    with contextlib.suppress(Exception):
        lie()
    time.sleep(0.01)
"""
INTERPRETER = [sys.executable, "-IS"]
LIMITED_S, LIMITED_CALLS = 60.0, 6
"""So long a limit is claimed again and again, and so often the agent may be asked."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    argv: tuple[str, ...]
    code: int | None
    told: str


class Site:
    """A project whose agent lies, and its ledger."""

    def __init__(self, world: World, name: str, lie: Lie, text: str, agent: dict[str, Any]) -> None:
        self.world, self.lie = world, lie
        self.folder = world.clone / name
        self.ledger = world.temporary / f"{name}.ledger"
        (self.folder / "prompts").mkdir(parents=True)
        for step in ("supervisor", "main"):
            (self.folder / "prompts" / f"{step}.md").write_text(f"Do the work of {step}.\n")
        plan = {
            "ledger": str(self.ledger),
            "evil": str(world.evil("lie")),
            "full": str(world.full(name)),
            "sequencer": [sys.executable, "-m", "sequencer"],
            "root": str(ROOT),
            **lie.plan,
        }
        self.plan = plan
        self.write_plan()
        (self.folder / "agent.py").write_text(text)
        body = "".join(f"    {line}\n" for line in lie.text.splitlines()) or "    pass\n"
        (self.folder / "haunt.py").write_text(f"{PRELUDE}\ndef lie():\n{body}\n{HAUNT}")
        document = {
            "workflow": {"name": "standard"},
            "agent": {"default": "script"},
            "agents": {"script": agent},
            **lie.settings,
        }
        if lie.needs_git:
            self._make_repository()
            document["store"] = {"kind": "git", "timeout_s": 20, "retry_for_s": 0}
            document["commit"] = {"paths": ["work.txt"]}
        (self.folder / "orchestration.yaml").write_text(json.dumps(document))
        self.ended: list[Ended] = []

    def write_plan(self, **changed: Any) -> None:
        self.plan |= changed
        (self.folder / "plan.json").write_text(json.dumps(self.plan))

    def _make_repository(self) -> None:
        bare = self.world.served / f"{self.folder.name}.git"
        (self.folder / ".gitignore").write_text(
            "sync/\nlogs/\n*.py\n*.json\n*.yaml\n.gitattributes\n"
        )
        for arguments in (
            ("init", "-q", "--bare", "-b", "main", str(bare)),
            ("init", "-q", "-b", "main"),
            ("add", "."),
            ("commit", "-q", "-m", "begin"),
            ("remote", "add", "origin", str(bare)),
            ("push", "-q", "-u", "origin", "main"),
        ):
            subprocess.run(
                ["git", *arguments], cwd=self.folder, env=self.world.environment(), check=True,
                capture_output=True, timeout=60,
            )  # fmt: skip

    def call(self, *argv: str, limit_s: float = LIMIT_S, **variables: str) -> Ended:
        """Run a command to its end, or for *limit_s*."""
        process = Forked(
            [sys.executable, "-m", "sequencer", *argv],
            cwd=self.folder,
            env=self.world.environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        code: int | None
        try:
            out, err = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate(timeout=LIMIT_S)
            code = None
        ended = Ended(argv, code, (out + err).decode("utf-8", "replace"))
        self.ended.append(ended)
        return ended

    def attempts(self) -> list[dict[str, Any]]:
        """Return what the ledger says."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [json.loads(line) for line in lines]

    def accepted(self) -> list[tuple[int, int, str]]:
        """Return index, token and answer of each accepted step, as the command line tells."""
        told = self.call("history", "--json").told
        found = []
        for line in told.splitlines():
            fact = json.loads(line) if line.startswith("{") else {}
            if fact.get("event") != "succeeded":
                continue
            outcome = fact.get("outcome") or {}
            text = str(outcome.get("output", ""))
            if name := outcome.get("output_file"):
                kept = self.folder / "sync" / name
                text = kept.read_text() if kept.is_file() else f"nothing at {name}"
            found.append((fact["step_index"], fact["token"], text))
        return found


def of_script(world: World, name: str, lie: Lie) -> Site:
    """Make a site whose agent is a program that lies in each step, or from one step on."""
    body = "".join(f"    {line}\n" for line in lie.text.splitlines())
    guarded = (
        'if plan.get("lies", True):\n  with contextlib.suppress(OSError, ValueError):\n' + body
    )
    fails = 'plan["fails"] = plan.get("fails") or index >= plan.get("fails_after", 10**9)\n'
    text = f"{PRELUDE}{HONEST}{guarded}{fails}"
    if lie.needs_git:
        text += 'open("work.txt", "a").write(answer + "\\n")\n'
    return Site(
        world, name, lie, text + ANSWER, {"kind": "command", "argv": [*INTERPRETER, "agent.py"]}
    )


@contextmanager
def haunted(site: Site) -> Iterator[None]:
    """Let what was left over of an attempt tell its lie again and again."""
    argv = [*INTERPRETER, "haunt.py"]
    with subprocess.Popen(argv, cwd=site.folder, stdin=subprocess.DEVNULL) as ghost:
        try:
            yield
        finally:
            ghost.kill()


def while_it_runs(site: Site) -> None:
    """Run steps whose agent lies."""
    site.call("run", "--max-steps", "3")
    site.call("tick")
    site.call("run", "--max-steps", "2")


def after_its_end(site: Site) -> None:
    """Run steps beside a process that is left over of the first."""
    site.write_plan(lies=False)
    site.call("run", "--max-steps", "1")
    with haunted(site):
        site.call("run", "--max-steps", "2")
        site.call("tick")
    site.call("run", "--max-steps", "1")


FORMS = {"while it runs": while_it_runs, "after its end": after_its_end}


def wrong(site: Site) -> Iterator[str]:
    """Yield what does not hold any more."""
    lie, attempts, accepted = site.lie, site.attempts(), site.accepted()
    if lie.keeps_order:
        yield from wrong_order(attempts, accepted)
    if lie.max_calls is not None and len(attempts) > lie.max_calls:
        yield f"the agent was called {len(attempts)} times, {lie.max_calls} were allowed"
    if any(SECRET in entry["seen"] for entry in attempts):
        yield "a prompt held a secret"
    for ended in site.ended:
        words = " ".join(ended.argv)
        if ended.code not in DOCUMENTED:
            yield f"{words} ended with {ended.code}: {ended.told[-200:]!r}"
        if "Traceback" in ended.told or "this is a bug" in ended.told:
            yield f"{words}: a bug: {ended.told[-300:]!r}"
    if lie.goes_on and len(accepted) < 3:
        codes = [ended.code for ended in site.ended]
        yield f"only {len(accepted)} steps were accepted: {codes} {site.ended[-2].told[-200:]}"


def wrong_order(
    attempts: list[dict[str, Any]], accepted: list[tuple[int, int, str]]
) -> Iterator[str]:
    """Yield which accepted step is nobody's, or not the one after the last."""
    own = {(entry["index"], entry["token"]): entry["answer"] for entry in attempts}
    for index, token, text in accepted:
        if own.get((index, token), "no such attempt") not in text:
            yield f"accepted for step {index}, token {token}: {text[:60]!r}"
    indexes = [index for index, _, _ in accepted]
    if indexes != list(range(len(indexes))):
        yield f"accepted were {indexes}"
    if len({token for _, token, _ in accepted}) != len(accepted):
        yield f"a token was accepted twice: {accepted}"


def told(world: World, name: str, form: str, number: int) -> list[str]:
    """Let an agent tell the lie *name*; return what does not hold."""
    site = of_script(world, f"lie-{number}", LIES[name])
    untouched = world.outside()
    site.call("trust", "--yes")
    site.ended.clear()
    FORMS[form](site)
    found = [*wrong(site), *differences(untouched, world.outside())]
    found += [f"canary {canary} sprang" for canary in world.sprung()]
    return [f"{name}, {form}: {text}" for text in found]


def of_client(world: World, name: str, lie: Lie) -> Site:
    """Make a site whose agent is a client that costs money."""
    program = world.clone / f"{name}-client"
    site = Site(
        world, name, lie, f"{PRELUDE}{HONEST}{CLIENT}", {"kind": "claude", "program": str(program)}
    )
    program.write_text(f"#!/bin/sh\nexec {' '.join(INTERPRETER)} agent.py\n")
    program.chmod(0o755)
    return site


def priced(world: World, cost: str, number: int) -> list[str]:
    """Let a client's result file say *cost*; two steps of 5 USD fit under a cap of 6."""
    lie = Lie("", {"limits": {"max_cost_usd": 6}}, {"cost": cost}, max_calls=2)
    site = of_client(world, f"cost-{number}", lie)
    for _ in range(2):
        site.call("run", "--max-steps", "4", SEQUENCER_TRUST="all")
    found = list(wrong(site))
    counted = json.loads((site.folder / "sync/state.json").read_text())["usage"]["cost_usd"]
    if counted < 5 * len(site.attempts()):
        found.append(f"{len(site.attempts())} attempts of 5 USD were counted as {counted} USD")
    if not site.attempts():
        found.append(f"nothing ran: {site.ended[0].told[-300:]}")
    return [f"a cost of {cost}: {text}" for text in found]


def limited(world: World) -> list[str]:
    """Let a client say for a minute that a limit is lifted in a second."""
    site = of_client(world, "limited", Lie("", {}, {"limit": LIMIT}))
    began = time.monotonic()
    ended = site.call("run", "--max-steps", "3", limit_s=LIMITED_S, SEQUENCER_TRUST="all")
    calls, seconds = len(site.attempts()), time.monotonic() - began
    is_right = 0 < calls <= LIMITED_CALLS and ended.code in (None, 1, 3)
    wrongs = f"{calls} calls in {seconds:.0f} s, then {ended.code}: {ended.told[-200:]}"
    return [] if is_right else [f"a limit for ever: {wrongs}"]


def unlimited(world: World) -> list[str]:
    """Let a client report failed tests that met somebody else's limit: the step failed."""
    site = of_client(world, "unlimited", Lie("", {}, {"limit": NO_LIMIT}))
    ended = site.call("run", "--max-steps", "1", limit_s=15, SEQUENCER_TRUST="all")
    calls = len(site.attempts())
    is_right = (ended.code, calls) == (1, 1)
    told = f"{calls} calls, then {ended.code}: {ended.told[-200:]}"
    return [] if is_right else [f"a limit that is none: {told}"]


def campaign(folder: Path, size: Size) -> Report:
    """Let agents write the head, the journal, others' answers, settings, hooks and costs."""
    todo = [
        (name, form)
        for number, name in enumerate(LIES if size is Size.LONG else ON_EVERY_PUSH)
        for place, form in enumerate(FORMS)
        # On every push a lie is told in one form, and the next lie in the other.
        if (LIES[name].haunts or not place)
        and (size is Size.LONG or place == number % 2 or not LIES[name].haunts)
    ]

    def part(half: int) -> list[str]:
        world = World(folder / str(half))
        found = [
            text
            for number, (name, form) in enumerate(todo[half::2])
            for text in told(world, name, form, number)
        ]
        prices = COSTS if size is Size.LONG else COSTS[1:2]
        found += [t for n, c in enumerate(prices[half::2]) for t in priced(world, c, n)]
        found += limited(world) if size is Size.LONG and half else []
        return found + ([] if half else unlimited(world))

    with ThreadPoolExecutor(2) as pool:
        found = [text for texts in pool.map(part, range(2)) for text in texts]
    return Report({"lies": len(todo)}, tuple(found))
