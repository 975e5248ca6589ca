"""``python -m tests.figures``: how large the program is, and what one step of it takes.

Counts are the same on every machine. ``--against FOLDER`` counts another working copy too and
prints both; with it the CPU of whole commands is measured, interleaved, as medians.
``--ratchet`` compares with `RATCHET`, ``--write`` writes that file.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import cProfile
import importlib
import inspect
import json
import os
import pstats
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
RATCHET = ROOT / "tests" / "figures.json"
STEPS = 1000
ROUNDS = 7
SETTLED_S = 2.5
"""After that long, a step trusts the times of a prompt."""
_KINDS = re.compile(
    r"\b(graph|flow) is (not )?None|(?<!\")\bis_team\b|\bis_graph\b|\bis_flow\b|\bis_line\b"
    r"|\bisinstance\([^)]*\b(SequenceKind|GraphKind)\b"
    r"|\bkind (==|!=|is|is not) [\"'](graph|flow|team|line|cycle)\b"
)
"""A question for the kind of a run, which is the kind object's own business."""
_LONG = ('"' * 3, "'" * 3)
_CHART = """---
id: two
---

```mermaid
flowchart TD
a --> b
```

### a
x

### b
x
"""


def code_lines(path: Path) -> int:
    """Return how many lines of *path* have code: no comments, docstrings or blanks."""
    from tests.structure import nodes_of, tree_of  # noqa: PLC0415 - as in `written`

    text = path.read_text(encoding="utf-8")
    rows = text.split("\n")
    found = {n for n, row in enumerate(rows, 1) if row.strip() and row.lstrip()[0] != "#"}
    alone: set[int] = set()
    for node in nodes_of(tree_of(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                # A string that stands alone is a docstring, of a name or of the field above it.
                alone |= set(range(node.lineno, (node.end_lineno or 0) + 1))
            case ast.Constant(value=str()) | ast.JoinedStr():
                # What looks like a comment or a blank in a long text is none.
                lines = range(node.lineno, (node.end_lineno or 0) + 1)
                if len(lines) > 1 and any(quote in rows[n - 1] for n in lines for quote in _LONG):
                    found |= set(lines)
    return len(found - alone)


def modules(root: Path, folder: str) -> list[Path]:
    """Return the Python files of *folder*."""
    return sorted((root / folder).rglob("*.py"))


def lazy_imports(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the imports of our own that stand inside functions."""
    from tests.structure import nodes_of  # noqa: PLC0415 - as in `written`

    for function in nodes_of(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(function):
                if not isinstance(node, (ast.Import, ast.ImportFrom)):
                    continue
                names = [getattr(node, "module", None) or ""]
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                is_own = any(name.split(".")[0] == "sequencer" for name in names)
                if is_own:
                    yield node


def written(root: Path) -> dict[str, Any]:
    """Return what can be counted in the text of the working copy *root*."""
    from tests import structure  # noqa: PLC0415 - parts of an earlier working copy have none

    found = modules(root, "sequencer")
    trees = {path: structure.tree_of(path) for path in found}
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in structure.nodes_of(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    outside = [path for path in found if path.relative_to(root).parts[1] != "model"]
    core = [path for path in found if path.relative_to(root).parts[1] != "plugins"]
    return {
        **structure.figures(root),
        "lines of code of the core": sum(map(code_lines, core)),
        "own imports inside functions": sum(
            len({id(node) for node in lazy_imports(tree)}) for tree in trees.values()
        ),
        "public class names used twice": sum(count > 1 for count in classes.values()),
        "modules that ask for the kind of a run": sum(
            bool(_KINDS.search(path.read_text(encoding="utf-8"))) for path in outside
        ),
        "lines of code of tests": sum(map(code_lines, modules(root, "tests"))),
    }


def project(folder: Path) -> Path:
    """Make a project with two steps and a flowchart, whose agents do nothing."""
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main"):
        (folder / "prompts" / f"{name}.md").write_text("x\n", encoding="utf-8")
    (folder / "flows").mkdir()
    (folder / "flows" / "two.md").write_text(_CHART, encoding="utf-8")
    settings = {
        "workflow": {"name": "standard"},
        "agent": {"default": "none"},
        "agents": {"none": {"kind": "command", "argv": ["true"]}},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def entered(command: list[str], folder: Path) -> dict[str, int]:
    """Run *command* here, and count our modules that did something and reads of the chart."""
    seen: set[str] = set()
    reads = 0

    def profile(frame: FrameType, event: str, arg: object) -> None:
        del arg
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and is_function and "/sequencer/" in code.co_filename:
            seen.add(code.co_filename)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal reads
        if event == "open" and str(args[0]).endswith("two.md"):
            reads += 1

    sys.addaudithook(hook)
    sys.argv = ["sequencer", *command]
    os.chdir(folder)
    sys.setprofile(profile)
    try:
        runpy.run_module("sequencer", run_name="__main__", alter_sys=True)
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)
    return {"modules": len(seen), "reads": reads}


def in_child(root: Path, what: str, *arguments: str) -> Any:
    """Return what ``--part`` *what* of this module says about the working copy *root*."""
    env = {**os.environ, "PYTHONPATH": str(root), "SEQUENCER_TRUST": "all"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "--root", str(root), "--part", what, *arguments],
        env=env,
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def steps(folder: Path) -> dict[str, float]:
    """Count the calls of one step of a run whose agent does nothing."""
    from bench.project import Marks, make_project, no_op_run  # noqa: PLC0415
    from sequencer import InvocationLimits  # noqa: PLC0415 - of the working copy that is counted

    made = make_project(folder)
    # Each step reads a prompt again that was changed a moment ago; those of a project are older.
    time.sleep(SETTLED_S)
    # What is asked again after a second is no call of a step: a busy machine would have more.
    for name in ("sequencer.engine.logs", "sequencer.logs"):  # where earlier working copies ask
        with contextlib.suppress(ModuleNotFoundError):
            vars(importlib.import_module(name))["GIT_KNOWN_S"] = float("inf")
    run = no_op_run(made, Marks())
    run.work(limits=InvocationLimits(max_steps=20))
    profile = cProfile.Profile()
    profile.enable()
    run.work(limits=InvocationLimits(max_steps=STEPS))
    profile.disable()
    found = pstats.Stats(profile)
    calls = found.stats.items()  # type: ignore[attr-defined]
    stats = sum(row[1] for (_, _, name), row in calls if re.search(r"posix\.(l|f)?stat\b", name))
    return {
        # Not what the statistics say: they take functions of one name for one.
        "calls a step": round(sum(one.callcount for one in profile.getstats()) / STEPS),
        "stat calls a step": round(stats / STEPS, 1),
    }


def counted_steps(root: Path) -> dict[str, Any]:
    """Return the calls of one step of the working copy *root*."""
    return dict(in_child(root, "steps"))


def counted(root: Path) -> dict[str, Any]:
    """Return every count of the working copy *root*."""
    found = written(root) | counted_steps(root)
    line = in_child(root, "entered", "run", "--max-steps", "1", "--quiet")
    flow = in_child(root, "entered", "run", "flows/two.md", "--quiet")
    found["modules entered by run --max-steps 1"] = line["modules"]
    found["reads of the chart by run FLOW.md"] = flow["reads"]
    return found


def cpu(root: Path, command: list[str], folder: Path) -> float:
    """Return the CPU seconds of the whole process of *command*."""
    env = {**os.environ, "PYTHONPATH": str(root), "SEQUENCER_TRUST": "all"}
    # As it is installed: compiled once, wherever and however this is called.
    env |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "sequencer", *command],
        env=env,
        cwd=folder,
        capture_output=True,
        check=True,
    )
    after = os.times()
    spent = after.children_user - before.children_user
    return spent + after.children_system - before.children_system


def compared_cpu(roots: list[Path]) -> dict[str, list[float]]:
    """Return the medians of the CPU of commands, for each of *roots*, interleaved."""
    found: dict[str, list[float]] = {}
    for words in ("status", "plan", "history", "run --max-steps 1 --quiet"):
        spent: list[list[float]] = [[] for _ in roots]
        with tempfile.TemporaryDirectory() as scratch:
            folders = [project(Path(scratch) / str(place)) for place in range(len(roots))]
            for root, folder in zip(roots, folders, strict=True):
                cpu(root, ["run", "--max-steps", "1", "--quiet"], folder)
            for _ in range(ROUNDS):
                for times, root, folder in zip(spent, roots, folders, strict=True):
                    times.append(cpu(root, words.split(), folder))
        found[f"CPU seconds of {words}"] = [round(statistics.median(one), 3) for one in spent]
    return found


def part(what: str, arguments: list[str]) -> Any:
    """Return one part of the counts, in a process of its own."""
    # In memory where that is possible: what is looked at once in a while is then looked at
    # in each step, and the count is the largest.
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - only to be fast
    folder = Path(tempfile.mkdtemp(prefix="sequencer-figures-", dir=fast))
    try:
        if what == "steps":
            return steps(folder)
        return entered(arguments, project(folder / "p"))
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


def broken(found: dict[str, Any]) -> list[str]:
    """Return which counts are larger than `RATCHET` allows."""
    most = json.loads(RATCHET.read_text(encoding="utf-8"))
    return [
        f"{name}: {found[name]}, and {RATCHET.name} allows {limit}"
        for name, limit in most.items()
        if found.get(name, 0) > limit
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    parser.add_argument("--ratchet", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given, rest = parser.parse_known_args()
    if given.part:
        print(json.dumps(part(given.part, rest)))
        return 0
    found = counted(given.root)
    before = counted(given.against.resolve()) if given.against else {}
    for name, count in found.items():
        print(f"{name:42} {before.get(name, ''):>10} {count:>10}")
    if given.against:
        for name, (old, new) in compared_cpu([given.against.resolve(), given.root]).items():
            print(f"{name:42} {old:>10} {new:>10}   {new / old:.2f}")
    if given.write:
        RATCHET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong = broken(found) if given.ratchet else []
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
