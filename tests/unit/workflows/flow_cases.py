"""Workflow files and what comes of each: the file flow_cases.json beside the charts.

``python -m tests.unit.workflows.flow_cases`` writes the answers of today into it. Read the
difference before you keep it: these are the words and places that authors see.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sequencer.errors import ConfigurationError
from sequencer.workflows.flowfile.markdown import Excerpt, split
from sequencer.workflows.flowfile.problems import Diagnostics, FlowErrors
from sequencer.workflows.flowfile.reader import read_flow
from sequencer.workflows.flowfile.settings import KEYS

FILE = Path(__file__).parents[2] / "data" / "flowcharts" / "flow_cases.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))


def outcome(text: str, file: str) -> dict[str, Any]:
    """Return the graph and the steps of *text*, or everything that is wrong with it."""
    try:
        flow = read_flow(text, file=Path(file))
    except FlowErrors as error:
        return {"errors": shown(*error.problems), "warnings": shown(*error.warnings)}
    made = flow.workflow
    return {
        "name": made.name,
        "title": flow.title,
        "description": made.description,
        "version": flow.version,
        "graph": flow.graph.model_dump(mode="json", exclude_defaults=True),
        "back": sorted(flow.graph.back_edges),
        "steps": [step.model_dump(mode="json", exclude_unset=True) for step in made.steps],
        "warnings": shown(*flow.warnings),
    }


def taken_apart(text: str) -> dict[str, Any]:
    """Return the parts of *text*, with its sections if *a*, *b* are nodes and if none is known."""
    findings = Diagnostics(Path("flow.md"))
    parts = split(text, findings)
    sections = {
        "any": parts.read_sections(None, KEYS),
        "a, b": parts.read_sections(("a", "b"), KEYS),
    }
    try:
        findings.ensure_none()
    except FlowErrors as error:
        return {"errors": shown(*error.problems)}
    return {
        "front": _lines(parts.front),
        "chart": _lines(parts.chart),
        "title": parts.title,
        "warnings": shown(*findings.warnings),
        "sections": {
            known: [
                [one.id, one.line, _lines(one.settings), _lines(one.prompt)]
                + [[heading.text, heading.line] for heading in one.headings]
                for one in found
            ]
            for known, found in sections.items()
        },
    }


def shown(*problems: ConfigurationError) -> list[str]:
    """Return each as ``line:column CODE SUBJECT: detail (hint)``."""
    return [
        f"{':'.join(map(str, getattr(one, 'position', None) or '-'))} {one.message}"
        + (f" ({one.hint})" if one.hint else "")
        for one in problems
    ]


def _lines(part: Excerpt | None) -> list[Any] | None:
    return [part.line, part.text] if part else None


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    text = case["text"]
    return outcome(text, case["file"]) if case["file"] else taken_apart(text)


if __name__ == "__main__":
    now = [{**case, "expect": _answer(case)} for case in CASES]
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, now)) + "\n]\n", encoding="utf-8")
