"""git, a backup or a person puts a run's files back to what they were, between and in steps.

In each round an agent commits everything after each step, and something takes the tree back, or
moves, copies, rewinds or resets it. Then the run goes on. No accepted step may be started again
before a start was refused with exit code 3, and nothing legitimate may be refused.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.clones import ENVIRONMENT, git
from tests.long.report import Report, Size
from tests.storage.commands import Ended, sequencer

ROUNDS = {Size.SHORT: 7, Size.LONG: 500}
STEPS = ("plan", "build", "test", "ship")
SEED = 35
TRACKED, WITHIN = 0.7, 0.5
"""Shares of the rounds: the run's folders lie in commits; it happens while a step runs."""
AGENT = (
    'cat > /dev/null; echo "$SEQUENCER_STEP" >> work.txt; git add -A; '
    'git commit --allow-empty -qm "$SEQUENCER_STEP"; '
    'if [ -e "../orders-$SEQUENCER_STEP" ]; then mv "../orders-$SEQUENCER_STEP" ../orders.done; '
    "sh ../orders.done; fi; exit 0"
)
CONFIGURATION = """\
agent: a
agents: {{a: {{kind: command, argv: [sh, -c, {agent!r}], pass_env: [{variables}]}}}}
workflow: p
workflows: {{p: {{kind: procedure, steps: [{steps}]}}}}
"""
TAKEN = {
    "stash": "git stash -q",
    "stash -u": "git stash -q --include-untracked",
    "checkout": "git checkout -q -- .",
    "checkout of an earlier commit": "git checkout -q HEAD~1 -- .",
    "reset --hard": "git reset -q --hard",
    "reset --hard to an earlier commit": "git reset -q --hard HEAD~1",
    "clean": "git clean -q -f -d; git clean -q -f -d",
}
"""What git is told, where it may take back what is tracked."""
LEGITIMATE = ("nothing", "move", "copy", "rewind", "feedback", "reset", "move and back")
_ACCEPTED = re.compile(r"\[\d+\] (\w+): accepted")
_BEGUN = re.compile(r"\[\d+\] (\w+): a with")


class Round:
    """One project and what is done to it."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        """Make the project in *folder*; *chance* decides everything."""
        self.top, self.folder = folder, folder / "project"
        self.kind = chance.choice([*TAKEN, "backup", "backup of a moved project", *LEGITIMATE])
        self.is_tracked = chance.random() < TRACKED
        self.is_within = self.kind in TAKEN and chance.random() < WITHIN
        self.after = chance.randint(1, len(STEPS))
        self.accepted: list[str] = []
        self.wrong: list[str] = []
        self.is_refused = self.is_fresh = False
        self.folder.mkdir(parents=True)
        gate = ", requires_approval: true"
        asks = self.kind == "feedback"
        steps = ", ".join(
            f"{{name: {name}, text: x{gate if asks and name == 'build' else ''}}}" for name in STEPS
        )
        variables = ", ".join(name for name in ENVIRONMENT if name.startswith("GIT_"))
        text = CONFIGURATION.format(agent=AGENT, variables=variables, steps=steps)
        (self.folder / "orchestration.yaml").write_text(text)
        if self.is_tracked:
            for name in ("sync", "logs"):
                (self.folder / name).mkdir()
        git(self.folder, "init", "-q", "-b", "main")
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "-m", "start")

    def __str__(self) -> str:
        """Return what happens, to try it again."""
        where = "in" if self.is_within else "after"
        kept = "tracked" if self.is_tracked else "ignored"
        return f"{self.kind} {where} step {self.after}, {kept}"

    def run(self, *arguments: str) -> Ended:
        """Work on the run, and look at which steps begin and which are accepted."""
        ended = sequencer(self.folder, *(arguments or ("run",)))
        said = ended.out + ended.err
        if "this is a bug" in said:
            self.wrong.append(f"a bug: {said[-400:]}")
        for line in said.splitlines():
            if (begun := _BEGUN.search(line)) and begun[1] in self.accepted:
                if not self.is_refused and not self.is_fresh:
                    self.wrong.append(f"accepted step {begun[1]} ran again")
                self.accepted.remove(begun[1])
            if done := _ACCEPTED.search(line):
                self.accepted.append(done[1])
        if ended.code == 3:
            self.is_refused = True
        return ended

    def perform(self) -> None:
        """Work up to the fault, let it happen, and go on to the end."""
        step = STEPS[self.after - 1]
        if self.is_within:
            (self.top / f"orders-{step}").write_text(TAKEN[self.kind])
        backup = self.top / "backup"
        if self.kind.startswith("backup"):
            self.run("run", "--max-steps", str(max(self.after - 1, 1)))
            shutil.copytree(self.folder, backup, symlinks=True)
        self.run("run", "--max-steps", str(1 if backup.exists() else self.after))
        if not self.is_within:
            self.happen(backup)
        last = self.run()
        if last.code == 3 and self.kind in LEGITIMATE:
            self.wrong.append(f"a legitimate run was refused: {last.err[-300:]}")
        if last.code == 3:
            self.recover()

    def happen(self, backup: Path) -> None:
        """Do what this round is about."""
        if self.kind in TAKEN:
            orders = ["sh", "-c", TAKEN[self.kind]]
            # Where there is nothing to take back, git says so.
            subprocess.run(
                orders, cwd=self.folder, env=ENVIRONMENT, capture_output=True, check=False
            )
        elif self.kind.startswith("backup"):
            shutil.rmtree(self.folder)
            target = self.folder if self.kind == "backup" else self.top / "elsewhere"
            self.folder = Path(shutil.copytree(backup, target, symlinks=True))
            shutil.rmtree(backup)
        elif self.kind.startswith("move"):
            other = self.top / "moved"
            self.folder.rename(other)
            self.folder = other
            if self.kind == "move and back":
                self.run("run", "--max-steps", "1")
                self.folder = other.rename(self.top / "project")
        elif self.kind == "copy":
            self.copied()
        elif self.kind == "feedback":
            self.is_fresh = True
            sequencer(self.folder, "answer", "please do this once more, and better")
        elif self.kind in {"rewind", "reset"}:
            self.is_fresh = True
            more = ("0",) if self.kind == "rewind" else ("--yes",)
            done = sequencer(self.folder, self.kind, *more)
            if done.code:
                self.wrong.append(f"{self.kind}: {done.err}")

    def copied(self) -> None:
        """Go on in a copy, which is not refused, and then with the original."""
        copy = Path(shutil.copytree(self.folder, self.top / "copy", symlinks=True))
        here, before = self.folder, list(self.accepted)
        self.folder = copy
        if self.run().code == 3:
            self.wrong.append("a copy was refused")
        self.folder, self.accepted = here, before

    def recover(self) -> None:
        """Do what the refusal says; the run goes on then."""
        repaired = sequencer(self.folder, "repair", "--apply", "--accept-journal")
        if repaired.code:
            # Its state is gone as well: a person starts over.
            return
        if (ended := self.run()).code not in {0, 4}:
            self.wrong.append(f"it does not go on after the repair: {ended.err[-300:]}")


def campaign(folder: Path, size: Size) -> Report:
    """git, backups and people put a run's files back, between and in steps; copies and moves."""
    chance = random.Random(SEED)  # noqa: S311 - the same in each run
    counts, violations = Counter[str](), list[str]()
    outer = {name: os.environ.get(name) for name in (*ENVIRONMENT, "XDG_STATE_HOME")}
    variables: dict[str, Any] = {**ENVIRONMENT, "PATH": os.environ["PATH"]}
    os.environ.update(variables, XDG_STATE_HOME=str(folder / "own"))
    try:
        for number in range(ROUNDS[size]):
            one = Round(folder / str(number), chance)
            one.perform()
            counts["rounds"] += 1
            counts["in a step" if one.is_within else "between steps"] += 1
            counts["refused"] += one.is_refused
            counts["legitimate"] += one.kind in LEGITIMATE
            violations += [f"round {number}, {one}: {text}" for text in one.wrong]
            shutil.rmtree(one.top)
    finally:
        restore: Callable[[str], None] = os.environ.pop  # type: ignore[assignment]
        for name, text in outer.items():
            if text is None:
                restore(name)
            else:
                os.environ[name] = text
    return Report({"inputs": counts["rounds"], **counts}, tuple(violations))
