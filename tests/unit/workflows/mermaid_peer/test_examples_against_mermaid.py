"""The record of how the example flows are drawn is what the real Mermaid package answers.

Run with ``pytest -m mermaid``, as the comparison of graphs, which installs the package.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sequencer.workflows.flowfile.reader import load_flow
from tests.unit.workflows.mermaid_peer.asking import installed_peer

pytestmark = [pytest.mark.mermaid, pytest.mark.timeout(120)]

HERE = Path(__file__).parent
DRAWN = HERE.parents[2] / "data" / "flowcharts" / "examples.json"
FLOWS = HERE.parents[3] / "examples" / "flows"


@pytest.fixture
def peer(pytestconfig: pytest.Config) -> Path:
    return installed_peer(pytestconfig, "peer.mjs")


def test_the_record_of_the_examples_matches_mermaid(peer: Path) -> None:
    recorded = json.loads(DRAWN.read_text(encoding="utf-8"))
    charts = [load_flow(FLOWS / f"{name}.md").mermaid for name in recorded]
    done = subprocess.run(
        ["node", "peer.mjs"],
        cwd=peer,
        input="".join(json.dumps(chart) + "\n" for chart in charts),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
        timeout=100,
    )
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert dict(zip(recorded, answers, strict=True)) == recorded
