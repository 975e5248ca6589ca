"""``python -m tests.random_functions``: print twelve functions of the package, to read them aloud.

The commit chooses them, so two people who look at one commit read the same ones. Whatever you
would not show to a colleague is rewritten.
"""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNT = 12
MIN_LINES = 4
"""Shorter functions are mostly properties."""


def functions() -> Iterator[tuple[Path, int, str]]:
    """Yield path, line and text of each function of the package."""
    for path in sorted((ROOT / "sequencer").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min((mark.lineno for mark in node.decorator_list), default=node.lineno)
                last = node.end_lineno or node.lineno
                if last - node.lineno >= MIN_LINES:
                    yield path.relative_to(ROOT), first, "\n".join(lines[first - 1 : last])


def chosen(seed: str, count: int = COUNT) -> list[tuple[Path, int, str]]:
    """Return *count* functions that *seed* chooses."""
    return random.Random(seed).sample(list(functions()), count)  # noqa: S311 - no secret


def main() -> None:
    """Print the functions of the commit, or of the seed that is given."""
    commit = ["git", "rev-parse", "HEAD"]
    known = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    seed = sys.argv[1] if len(sys.argv) > 1 else known.strip()
    for path, line, text in chosen(seed):
        print(f"# {path}:{line}\n{text}\n")


if __name__ == "__main__":
    main()
