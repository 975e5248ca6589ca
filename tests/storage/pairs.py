"""Two files of a run damaged at once, and all of them, before the real command.

The agents' own ledger is the judge: a step that was accepted never runs again. The run
continues exactly, or the command ends with exit code 3 and changes nothing; then `repair`
shows what there is, and `repair --apply`, with the choice that it asks for, gives a run
that works, or says what a person has to do.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from tests.long.report import Report, Size
from tests.property.amounts import in_memory
from tests.storage.commands import Ended, sequencer

AGENT = """\
import os, sys
asked = sys.stdin.read()
step, index, token = (os.environ["SEQUENCER_" + n] for n in ("STEP", "STEP_INDEX", "TOKEN"))
said = f"{step} {index} " + "x" * (3500 if int(index) % 2 else 6000) + " the end"
whole = "\\0" not in asked and ("xxx" not in asked or "x the end" in asked)
with open("ledger", "a") as ledger:
    ledger.write(f"{step} {index} {token} {'whole' if whole else 'broken'}\\n")
if step == "verifications":
    said = '{"pass": true, "reason": "fine"}'
print(said)
"""
AFTER = 3
"""Steps that the command under test is asked for."""
OLDER, NEWER = 3, 6
"""Steps after which the older copy was made, and after which the damage is done."""
LONG_RUN = 24
"""Steps that fill a journal of the smallest size that there is more than once."""
HANG_S = 60.0

Content = dict[str, bytes]
"""Names below the run's folder, and what is in each file."""
Damage = Callable[[str, Content, Content], bytes | None]
"""From a name, what there is and the older copy to what shall be there; None: nothing."""

DAMAGES: Mapping[str, Damage] = {
    "halved": lambda name, now, _: now[name][: len(now[name]) // 2],
    "emptied": lambda *_: b"",
    "deleted": lambda *_: None,
    "zeroed": lambda name, now, _: _zeroed(now[name]),
    "older": lambda name, _, old: old.get(name),
}


def _zeroed(data: bytes) -> bytes:
    third = len(data) // 3
    return data[:third] + bytes(len(data) - 2 * third) + data[-third:] if third else b""


def kind_of(name: str) -> str | None:
    """Return which kind of file *name*, below the run's folder, is; None: not to be damaged."""
    kinds = {
        "state.json": "head",
        "journal.jsonl": "journal",
        "definition.json": "definition",
        "flow.json": "definition",
    }
    starts = {"journal-": "rotated", "marking-": "marking", "results/": "results"}
    found = (kind for start, kind in starts.items() if name.startswith(start))
    return kinds.get(name) or next(found, None)


@dataclass(frozen=True, slots=True)
class Story:
    """A run, and how it is made."""

    name: str
    settings: Mapping[str, Any]
    run: tuple[str, ...] = ()
    """Options of every command."""
    target: tuple[str, ...] = ()
    """What ``run`` is given: a flowchart, or nothing."""
    start: tuple[str, ...] = ()
    """The command that begins the run; ``run`` does it where this is empty."""
    folder: str = "sync"
    steps: tuple[int, int] = (OLDER, NEWER)
    is_line: bool = True
    """Its steps have indexes of their own; those of a graph have names."""
    is_short: bool = True
    """It is tried on every push."""

    @property
    def named(self) -> tuple[str, ...]:
        """Return the options of a command that is not told the target."""
        return () if self.folder == "sync" else ("--run", Path(self.folder).name)


NODES = [f"n{number}" for number in range(60)]
FLOW = f"""\
---
id: chart
name: Chart
---
# Chart

```mermaid
flowchart TD
  {" --> ".join(f"{node}[{node}]" for node in NODES)}
```
""" + "".join(f"\n### {node}\n{{{{output}}}}\n" for node in NODES)
TASKS = [
    {
        "id": f"t{number}",
        "subject": f"Task {number}",
        "blocked_by": [f"t{number - 1}"] * (number > 0),
    }
    for number in range(10)
]
ROTATED = {"store": {"journal": {"rotate_bytes": 64 * 1024}}}
TEAM = {"workflow": {"name": "team"}, "workflows": {"team": {"size": 1, "tasks": TASKS}}}
LINE = {"workflow": {"name": "standard"}}
ALPHA, P1 = ("--run", "alpha"), ("--run", "p1")
START = ("start", "Add user profile page", *P1, "--no-run")
STORIES = (
    Story("a cycle", LINE, is_short=False),
    Story("a cycle, rotated", LINE | ROTATED, steps=(LONG_RUN // 2, LONG_RUN)),
    Story("a named cycle", LINE, ALPHA, folder="sync/runs/alpha"),
    Story(
        "a named cycle, rotated",
        LINE | ROTATED,
        ALPHA,
        folder="sync/runs/alpha",
        steps=(30, 36),
        is_short=False,
    ),
    Story("a procedure", {}, P1, start=START, folder="sync/runs/p1", steps=(1, 2)),
    Story("a flow", {}, (), ("flows/chart.md",), folder="sync/runs/chart", is_line=False),
    Story(
        "a long flow, rotated",
        ROTATED,
        (),
        ("flows/chart.md",),
        folder="sync/runs/chart",
        steps=(36, 46),
        is_line=False,
        is_short=False,
    ),
    Story("a team", TEAM, is_line=False),
    Story(
        "a named team",
        TEAM,
        ("--run", "crew"),
        folder="sync/runs/crew",
        is_line=False,
        is_short=False,
    ),
)


class Made:
    """A run of a story with accepted steps, and the older copy of it."""

    def __init__(self, story: Story, folder: Path) -> None:
        self.story, self.made, self.copy = story, folder / "made", folder / "copy"
        self._write()
        older, newer = story.steps
        if story.start:
            self._do(*story.start)
        self._do(*story.run, "run", *story.target, "--max-steps", f"{older}")
        self.old = self.content(self.made)
        self._do(*story.run, "run", *story.target, "--max-steps", f"{newer - older}")
        self.now = self.content(self.made)
        self.accepted = self.ledger(self.made)
        if len(self.accepted) != newer or len(set(self.accepted)) != newer:
            message = f"{story.name}: the ledger has {self.accepted}"
            raise RuntimeError(message)
        self.kinds = sorted({kind for name in self.now if (kind := kind_of(name)) is not None})

    def _write(self) -> None:
        for name in ("prompts", "flows"):
            (self.made / name).mkdir(parents=True)
        (self.made / "agent.py").write_text(AGENT)
        (self.made / "flows/chart.md").write_text(FLOW)
        (self.made / "prompts/supervisor.md").write_text("Supervise.\n")
        (self.made / "prompts/main.md").write_text("Do it.\n")
        script = {"kind": "command", "argv": [sys.executable, "-IS", "agent.py"]}
        document: dict[str, Any] = {"agent": {"default": "script"}, "agents": {"script": script}}
        (self.made / "orchestration.yaml").write_text(
            json.dumps(document | {**self.story.settings})
        )

    def _do(self, *arguments: str) -> None:
        ended = sequencer(self.made, *arguments)
        if ended.code != 0:
            message = f"{self.story.name}: {arguments}: {ended.code} {ended.err} {ended.out[-300:]}"
            raise RuntimeError(message)

    def content(self, project: Path) -> Content:
        folder = project / self.story.folder
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and "runs" not in path.relative_to(folder).parts
        }

    def ledger(self, project: Path) -> list[str]:
        """Return the steps that were begun, as they can begin once only."""
        lines = (project / "ledger").read_text().splitlines()
        return [line.split()[1 if self.story.is_line else 0] for line in lines]

    def damaged(self, damages: Mapping[str, str]) -> Content:
        """Make a copy with *damages* (kind of file to kind of damage); return what is in it."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.made, self.copy)
        folder = self.copy / self.story.folder
        for name in self.now:
            kind = kind_of(name)
            if kind is None or kind not in damages:
                continue
            data = DAMAGES[damages[kind]](name, self.now, self.old)
            if data is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(data)
        return self.content(self.copy)

    def inputs(self) -> Iterator[dict[str, str]]:
        """Yield each damage of each kind alone, of each two kinds, and of all."""
        for number in (1, 2):
            for kinds in combinations(self.kinds, number):
                for damages in product(DAMAGES, repeat=number):
                    yield dict(zip(kinds, damages, strict=True))
        for damage in DAMAGES:
            yield dict.fromkeys(self.kinds, damage)


def tried(made: Made, damages: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return what became of the run with *damages*, and what is wrong with that."""
    before = made.damaged(damages)
    ended = _run(made)
    broken = [line for line in _lines(made) if line.endswith("broken")]
    wrong = [f"a step began without what it was to be told: {broken}"] if broken else []
    if text := ended.wrong(0, 3, *(1,) * _is_stopped(ended)):
        return "bug", [*wrong, f"run: {text}"]
    if ended.code == 0:
        return "continued", [*wrong, *_continued(made, ended)]
    if ended.code == 1 or made.ledger(made.copy) != made.accepted:
        # A step whose prompt needs what is lost does not start; others may have.
        return "stopped", [*wrong, *_continued(made, ended, is_stopped=True)]
    after = made.content(made.copy)
    changed = [n for n in ("state.json", "journal.jsonl") if before.get(n) != after.get(n)]
    # A head that was restored whole may still name a document that is lost.
    changed = [name for name in changed if after[name] != made.now[name]]
    if changed and not _is_stopped(ended):
        wrong.append(f"run: exit code 3, and it changed {changed}: {ended.err[-300:]}")
    way, more = _way_out(made, damages)
    return f"refused, {way}", [*wrong, *more]


def _is_stopped(ended: Ended) -> bool:
    """Return whether a step was not begun because what its prompt asks for is lost."""
    return "output of an earlier step" in ended.err or "missing before byte" in ended.err


def _run(made: Made) -> Ended:
    story = made.story
    verb = ("run", *story.target, "--max-steps", f"{AFTER}")
    return sequencer(made.copy, *story.run, *verb, limit_s=HANG_S)


def _lines(made: Made) -> list[str]:
    return (made.copy / "ledger").read_text().splitlines()


def _continued(made: Made, ended: Ended, *, is_stopped: bool = False) -> Iterator[str]:
    ran = made.ledger(made.copy)[len(made.accepted) :]
    if again := [step for step in ran if step in made.accepted]:
        yield f"accepted steps ran again: {again}; {ended.err[:400]}"
    twice = [step for step, times in Counter(ran).items() if times > 1]
    if twice and not is_stopped:
        yield f"steps ran twice: {twice}"
    is_over = "complete" in ended.err + ended.out
    if not is_stopped and not ran and not is_over:
        yield f"it ended with 0, and nothing ran: {ended.err[-300:]}"


def _way_out(made: Made, damages: Mapping[str, str]) -> tuple[str, list[str]]:
    """Repair the run as a person would; return how, and what is wrong with the way."""
    run = made.story.named
    shown = sequencer(made.copy, *run, "repair", limit_s=HANG_S)
    if text := shown.wrong(0, 3):
        return "no repair", [f"repair: {text}"]
    applied, choice = sequencer(made.copy, *run, "repair", "--apply", limit_s=HANG_S), "repaired"
    for option in ("--accept-head", "--accept-journal"):
        if applied.code == 3 and option in applied.err:
            applied = sequencer(made.copy, *run, "repair", "--apply", option, limit_s=HANG_S)
            choice = f"repaired with {option}"
    if text := applied.wrong(0, 3):
        return choice, [f"repair --apply: {text}"]
    if applied.code == 3:
        ways = ("backup", "bring", "restore", "update")
        is_told = any(word in applied.out + applied.err for word in ways)
        return "told", [] if is_told else [f"repair --apply says no way: {applied.err}"]
    return choice, list(_after(made, damages, choice))


def _after(made: Made, damages: Mapping[str, str], choice: str) -> Iterator[str]:
    """Yield what is wrong with the run after a repair by *choice*."""
    after = _run(made)
    is_lost = _is_stopped(after) or "--accept-head" in choice
    if text := after.wrong(0, 3, *(1,) * is_lost):
        yield f"run after the repair: {text}"
    elif after.code == 3 and not damages.keys() & {"results", "marking", "definition", "rotated"}:
        yield f"the repaired run does not work: {after.err}"
    elif choice == "repaired":
        yield from _continued(made, after, is_stopped=after.code != 0)


def campaign(folder: Path, size: Size) -> Report:
    """Damage every two kinds of files of nine runs in every two ways, and all of them."""
    if size is Size.SHORT:
        with in_memory() as made:
            return _campaign(made, size)
    return _campaign(folder, size)


def _campaign(folder: Path, size: Size) -> Report:
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    chance = random.Random(14)  # noqa: S311 (chance, no secret)
    stories = STORIES if size is Size.LONG else [story for story in STORIES if story.is_short]
    for number, story in enumerate(stories):
        made = Made(story, folder / str(number))
        inputs = list(made.inputs())
        if size is Size.SHORT:
            both = {"head": "halved", "journal": "halved"}
            inputs = [both] if number % 2 else [chance.choice(inputs)]
        for damages in inputs:
            kind, found = tried(made, damages)
            kinds[kind] += 1
            wrong += [f"{story.name}, {damages}: {text}" for text in found]
    told = {f"{kind.replace(' ', '_')}_inputs": float(n) for kind, n in sorted(kinds.items())}
    return Report({"inputs": kinds.total()}, tuple(wrong), told)
