"""A picture of the ratios; a program of its own, because matplotlib is a peer's package.

``python -m bench.plotting FILE.png < RESULT.json``
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.child import CHECKOUT, Absent, clean_environment
from bench.peers.installing import interpreter, why_absent

WITHIN, OVER, SHOWN = "#3b7d4f", "#b3402e", "#8a8f98"


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw *result* to *path*, in an interpreter that has matplotlib.

    Raises:
        Absent: there is none, or it failed.
    """
    python = sys.executable
    if find_spec("matplotlib") is None:
        reason = why_absent("matplotlib")
        if reason is not None:
            raise Absent(f"matplotlib: {reason}")
        python = str(interpreter("matplotlib"))
    done = subprocess.run(
        [python, "-m", "bench.plotting", str(path.resolve())],
        input=json.dumps(result),
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        env=clean_environment(),
        check=False,
    )
    if done.returncode != 0:
        raise Absent(f"matplotlib: {done.stderr.strip()[-300:]}")


def draw(result: dict[str, Any], path: str) -> None:
    """Draw one bar a ratio on a logarithmic scale, with a tick at its own bar."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    rows = [row for row in result["rows"] if row["ratio"] is not None][::-1]
    figure, axes = pyplot.subplots(figsize=(10, 0.36 * len(rows) + 1.4), layout="constrained")
    colours = [SHOWN if row["ok"] is None else WITHIN if row["ok"] else OVER for row in rows]
    places = range(len(rows))
    axes.barh(places, [row["ratio"] for row in rows], color=colours, height=0.6)
    for place, row in zip(places, rows, strict=True):
        if row["bar"] is not None:
            axes.plot([row["bar"]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2)
        axes.annotate(f" {row['ratio']:.2f}", (row["ratio"], place), va="center", fontsize=8)
    axes.set_yticks(places, [f"{row['name']}  |  {row['against'][:52]}" for row in rows])
    axes.tick_params(axis="y", labelsize=8)
    axes.set_xscale("log")
    axes.axvline(1.0, color="#c8ccd2", linewidth=1, zorder=0)
    axes.set_xlabel("ours / the other side (left of 1 is faster); black: how much is allowed")
    machine = result["machine"]
    axes.set_title(f"{machine['cpu']}, {machine['filesystem']}, {machine['at'][:10]}", fontsize=9)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.argv[1])
