"""Workflow files for tests, and their problems in one line each."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from sequencer.workflows.flowfile.problems import FlowErrors, FlowProblem
from sequencer.workflows.flowfile.reader import FlowFile, read_flow
from sequencer.workflows.flowfile.settings import Overrides

FILE = Path("flow.md")


def flow_text(chart: str, rest: str = "", front: str = "") -> str:
    """Return a file; without *front* the chart's first line is line 3."""
    before = f"---\n{dedent(front)}---\n" if front else ""
    return f"{before}```mermaid\nflowchart TD\n{dedent(chart).strip()}\n```\n{dedent(rest)}"


def sections(*names: str, prompt: str = "Go.") -> str:
    return "".join(f"### {name}\n{prompt}\n" for name in names)


def settings(name: str, text: str, prompt: str = "Go.") -> str:
    """Return a section with settings; the first one is in its third line."""
    return f"### {name}\n---\n{dedent(text).strip()}\n---\n{prompt}\n"


def read(text: str, overrides: Overrides | None = None) -> FlowFile:
    return read_flow(text, file=FILE, overrides=overrides)


def bare(chart: str, overrides: Overrides | None = None) -> FlowFile:
    text = f"flowchart TD\n{dedent(chart).strip()}\n"
    return read_flow(text, file=Path("flow.mmd"), overrides=overrides)


def refusal(text: str, overrides: Overrides | None = None) -> FlowErrors:
    with pytest.raises(FlowErrors) as refused:
        read(text, overrides)
    return refused.value


def shown(problem: FlowProblem) -> str:
    place = ":".join(map(str, problem.position)) if problem.position else "-"
    return f"{place} {problem.message}"


def told(text: str, overrides: Overrides | None = None) -> list[str]:
    """Return the errors of *text* as ``line:column CODE SUBJECT: detail``."""
    return [shown(problem) for problem in refusal(text, overrides).problems]


def warned(text: str) -> list[str]:
    return [shown(problem) for problem in read(text).warnings]
