"""From one clone's step to the other's over a bare repository on this disk.

*git handoff*: from the acceptance of one step to the begin of the next, that is a wake-up,
a fetch, a look, and the push of the claim. Against it the same four things with git's own
commands and nothing else: commit-tree, push, fetch, cat-file.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.child import Child
from bench.disk import undisturbed
from bench.measuring import MINIMUM_ROUNDS, QUICK, compare, rounds
from bench.project import make_project
from bench.result import Row, capped, compared
from bench.rows import Setting
from bench.rows.git_child import RAW
from bench.rows.handoff import POSITIONS, latencies

BAR = 1.5
BLOCK, SHORT = 10, 4
"""Steps of each clone in a row; the short blocks tell what an invocation costs besides."""
PROCESSES = 6
FEWEST_ROUNDS = 4
"""Of the quick form: each takes ten seconds and more, and the first one does not count."""
HOIDN = "hoidn/orchestration: git pull and push, stated, not run"
HOIDN_MS = (("at poll 0", 274.0), ("at its default", 4785.0))
STORE = "store: {kind: git, work: {branch: none}}\n"
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "GIT_AUTHOR_NAME": "bench",
    "GIT_AUTHOR_EMAIL": "bench@localhost",
    "GIT_COMMITTER_NAME": "bench",
    "GIT_COMMITTER_EMAIL": "bench@localhost",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def measure(setting: Setting) -> list[Row]:
    """Return the handoff, the processes that it takes, and what is said of the peer."""
    _prepare(undisturbed(setting.folder, "git"))
    ours: list[float] = []
    raw: list[float] = []
    processes = steps = 0
    with ExitStack() as stack:
        pair = []
        for index, position in enumerate(POSITIONS):
            arguments = [str(setting.folder / "git"), position, str(index)]
            log = setting.folder / f"{position}.log"
            pair.append(stack.enter_context(Child("bench.rows.git_child", arguments, log)))
        for number in _rounds(setting.effort.seconds):
            answers = _both(pair, {"do": "ours", "count": BLOCK})
            theirs = _both(pair, {"do": "raw", "count": BLOCK})
            few = _both(pair, {"do": "ours", "count": SHORT})
            if number == 0:
                continue
            ours.append(statistics.median(latencies(answers)[0]))
            raw.append(statistics.median(latencies(theirs)[0]))
            processes += sum(answer["processes"] for answer in answers)
            processes -= sum(answer["processes"] for answer in few)
            steps += 2 * (BLOCK - SHORT)
    found = compare(ours, raw)
    handoff = compared(
        "git handoff",
        found,
        against="commit-tree, push, fetch, cat-file",
        unit="ms",
        scale=1e3,
        bar=BAR,
        note="acceptance to begin, local bare remote",
    )
    note = "of both clones together, for each step more; an invocation takes one or two besides"
    return [
        handoff,
        capped("git processes", processes / steps, PROCESSES, "a step", note),
        *(
            Row(
                name=f"git handoff vs hoidn {when}",
                value=found.ours * 1e3,
                unit="ms",
                against=HOIDN,
                against_value=value,
                note="its figure is from another machine of this kind",
            )
            for when, value in HOIDN_MS
        ),
    ]


def _rounds(seconds: float) -> Iterator[int]:
    return rounds(seconds, FEWEST_ROUNDS if seconds <= QUICK.seconds else MINIMUM_ROUNDS)


def _both(pair: list[Child], request: dict[str, Any]) -> list[dict[str, Any]]:
    for child in pair:
        child.tell(request)
    return [child.hear() for child in pair]


def _prepare(folder: Path) -> None:
    """Make a bare repository and a clone for each position, with one project in them."""
    _git(folder, "init", "--quiet", "--bare", "remote.git")
    first = folder / POSITIONS[0]
    _git(folder, "clone", "--quiet", "remote.git", POSITIONS[0])
    make_project(first, STORE)
    (first / "README.md").write_text("a project\n", encoding="utf-8")
    (first / ".gitignore").write_text("sync/\nlogs/\n", encoding="utf-8")
    _git(first, "add", ".")
    _git(first, "commit", "--quiet", "-m", "begin")
    _git(first, "push", "--quiet", "origin", "HEAD:refs/heads/main", f"HEAD:{RAW}")
    _git(folder, "clone", "--quiet", "--branch", "main", "remote.git", POSITIONS[1])


def _git(folder: Path, *argv: str) -> None:
    subprocess.run(["git", *argv], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
