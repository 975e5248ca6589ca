"""The same answer as the real Mermaid package, for thousands of charts that nobody wrote.

Run with ``pytest -m mermaid``; it needs Node and npm. The package is installed once into
pytest's cache folder, or taken from the folder that SEQUENCER_TEST_MERMAID names (one that
has node_modules/mermaid). SEQUENCER_TEST_MERMAID_CHARTS and …_SEED change what is compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sequencer.workflows.mermaid.chart import SHAPES
from sequencer.workflows.mermaid.parser import read_chart
from sequencer.workflows.mermaid.text import ChartError
from tests.unit.workflows.mermaid_peer.asking import ask
from tests.unit.workflows.mermaid_peer.charts import charts

pytestmark = [pytest.mark.mermaid, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "data" / "flowcharts"
INVALID = {"invalid": True}


@pytest.fixture(scope="module")
def peer(pytestconfig: pytest.Config) -> Path:
    """Return a folder in which peer.mjs can run."""
    named = os.environ.get("SEQUENCER_TEST_MERMAID")
    if not (shutil.which("node") and shutil.which("npm")):
        if os.environ.get("CI_REQUIRE_MERMAID"):
            pytest.fail("node or npm is missing")
        pytest.skip("node or npm is missing")
    folder = Path(named) if named else pytestconfig.cache.mkdir("mermaid")
    if not (folder / "node_modules" / "mermaid").is_dir():
        shutil.copy(HERE / "package.json", folder)
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=folder,
            check=True,
            capture_output=True,
            timeout=600,
        )
    shutil.copy(HERE / "peer.mjs", folder)
    return folder


def answers(peer: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Return what Mermaid says about each of *texts*."""
    found = ask("peer.mjs", peer, texts, timeout_s=850)
    return [INVALID if "invalid" in answer else answer for answer in found]


def ours(text: str) -> dict[str, Any]:
    try:
        return read_chart(text).as_json()
    except ChartError:
        return INVALID


@pytest.mark.parametrize("name", ["charts.json", "more_charts.json"])
def test_the_recorded_data_matches_mermaid(peer: Path, name: str) -> None:
    entries = json.loads((DATA / name).read_text(encoding="utf-8"))

    assert answers(peer, [entry["text"] for entry in entries]) == [
        entry["expect"] for entry in entries
    ]


def test_every_shape_is_one_of_mermaids(peer: Path) -> None:
    names = sorted(SHAPES)
    texts = [f"flowchart TD\na@{{ shape: {name} }}" for name in names]

    assert [answer["nodes"][0]["shape"] for answer in answers(peer, texts)] == names


def test_random_charts_give_the_same_graph(peer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = int(os.environ.get("SEQUENCER_TEST_MERMAID_CHARTS", "4000"))
    seed = int(os.environ.get("SEQUENCER_TEST_MERMAID_SEED", "1"))
    known = [
        entry["text"] for entry in json.loads((DATA / "charts.json").read_text(encoding="utf-8"))
    ]
    texts = charts(seed, count, known)

    different = []
    seen: Counter[str] = Counter()
    for text, answer in zip(texts, answers(peer, texts), strict=True):
        found = ours(text)
        seen["invalid" if answer == INVALID else "valid"] += 1
        if found != answer:
            different.append({"chart": text, "ours": found, "mermaid": answer})

    with capsys.disabled():
        print(f"\nseed {seed}: {dict(seen)}, {len(different)} different")
    # A generator of nothing but refused charts would show little.
    assert seen["valid"] > count // 4
    assert seen["invalid"] > count // 4
    assert not different, json.dumps(different[:5], indent=1, ensure_ascii=False)
