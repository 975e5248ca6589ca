from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from tests.unit.cli.calling import call, project, worked

READ: Callable[[str], Iterable[Metric]] = read_openmetrics


def samples(folder: Path, *arguments: str) -> dict[str, float]:
    """Return what ``metrics`` prints: name and labels to value."""
    ended = call(folder, "report", "--metrics", *arguments)
    assert ended.code == 0, ended.err
    assert ended.out.endswith("# EOF\n")
    return {
        f"{one.name}{sorted(one.labels.items())}": one.value
        for family in READ(ended.out)
        for one in family.samples
    }


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    assert call(folder, "run", "--run", "docs", "--max-steps", "1", "--quiet").code == 0
    for path in (folder / "sync" / "runs" / "docs").glob("*.json*"):
        path.write_text("damaged")
    ended = call(folder, "report", "--metrics", "--all-runs")
    assert ended.code == 0
    assert 'sequencer_run_readable{run="docs"} 0.0' in ended.out
    assert 'sequencer_run_readable{run="(default)"} 1.0' in ended.out
    assert "warning: run docs: " in ended.err
    assert call(folder, "report", "--metrics", "--run", "docs").code == 3


def test_a_file_for_a_node_exporter(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    path = tmp_path / "textfile" / "sequencer.prom"
    path.parent.mkdir()
    arguments = ("report", "--metrics", "--format", "prometheus", "--output", str(path))
    before = os.umask(0o077)
    try:
        ended = call(folder, *arguments)
    finally:
        os.umask(before)
    assert (ended.code, ended.out) == (0, "")
    assert f"{path} was written" in ended.err
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_text() == call(folder, "report", "--metrics", "--format", "prometheus").out
    assert "# EOF" not in path.read_text()
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    earlier = path.read_text()
    assert call(folder, *arguments, "--quiet").err == ""
    assert path.read_text() != earlier
    assert [found.name for found in path.parent.iterdir()] == ["sequencer.prom"]


def test_no_other_file_is_overwritten(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    ended = call(folder, "report", "--metrics", "--output", "orchestration.yaml")
    assert ended.code == 2
    assert "exists and is not a metrics file" in ended.err
    assert "review_cadence" in (folder / "orchestration.yaml").read_text()


@pytest.mark.parametrize(
    "text", ["# Title\ntext\n", "# HELP me\n", "# EOF\nmore\n", "# HELP sequencers_x\n"]
)
def test_a_document_that_begins_like_metrics_stays_as_it_is(tmp_path: Path, text: str) -> None:
    folder = worked(tmp_path / "p", 1)
    (folder / "README.md").write_text(text)
    ended = call(folder, "report", "--metrics", "--output", "README.md")
    assert (ended.code, (folder / "README.md").read_text()) == (2, text)
    assert "exists and is not a metrics file" in ended.err


@pytest.mark.parametrize("text_format", ["openmetrics", "prometheus"])
def test_metrics_replace_an_empty_file_and_earlier_metrics(
    tmp_path: Path, text_format: str
) -> None:
    folder = worked(tmp_path / "p", 1)
    arguments = ("report", "--metrics", "--output", "m.prom", "--format", text_format)
    for earlier in ("", "# EOF\n", call(folder, "report", "--metrics").out):
        (folder / "m.prom").write_text(earlier)
        assert call(folder, *arguments).code == 0
    assert call(folder, *arguments).code == 0


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    assert call(folder, "report", "--metrics", "--json").code == 2
    assert call(folder, "report", "--metrics", "--format", "xml").code == 2
    assert call(folder, "report", "--metrics", "--run", "nobody").code == 2
    both = call(folder, "report", "--metrics", "--all-runs", "--run", "docs")
    assert both.code == 2
    assert "can't be used together" in both.err


def test_a_changed_definition_only_removes_the_roles(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    text = (folder / "orchestration.yaml").read_text()
    (folder / "orchestration.yaml").write_text(
        f"{text}workflows: {{review_cadence: {{steps: [main]}}}}\n"
    )
    ended = call(folder, "report", "--metrics")
    assert ended.code == 0
    assert "warning: roles and models are unknown" in ended.err
    assert 'sequencer_run_step_index{run="(default)",workflow="review_cadence"} 1.0' in ended.out


TEAM = """\
agent: {default: s}
agents:
  s:
    kind: scripted
    outcomes: [{output: x, usage: {input_tokens: 90, output_tokens: 10, cost_usd: 0.25}}]
teams:
  budget: {max_tokens: 5000}
  roles: {researcher: {budget: {max_cost_usd: 2}}}
workflows:
  errand:
    size: 2
    tasks:
      - {id: left, subject: Look to the left, role: researcher}
      - {id: right, subject: Look to the right, role: researcher, budget: {max_tokens: 150}}
      - {id: cross, subject: Cross, role: summarizer, blocked_by: [left, right]}
"""


def test_the_roles_and_the_budgets_of_a_team(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", TEAM)
    ended = call(folder, "run", "errand", "--quiet")
    assert ended.code == 0, ended.err
    lines = call(folder, "report", "--metrics", "--run", "errand").out.splitlines()
    roles = {
        match[2]: match[1]
        for line in lines
        if line.startswith("sequencer_steps_accepted_total")
        if (match := re.search('role="([^"]*)",run="errand",step="([^"]*)"', line))
    }
    assert roles == {"left": "researcher", "right": "researcher", "cross": "summarizer"}
    left = {
        (match[3], match[2], match[1]): float(line.split()[-1])
        for line in lines
        if (match := re.match(r'sequencer_budget_left_(\w+){name="(.*?)",.*scope="(.*?)"', line))
    }
    assert left == {
        ("team", "", "tokens"): 4700,
        ("role", "researcher", "usd"): 1.5,
        ("task", "right", "tokens"): 50,
    }
    told = json.loads(call(folder, "report", "--run", "errand", "--json").out)
    assert {one["step"]: one["role"] for one in told["executions"]} == roles
    assert told["figures"]["places"] == 2


def test_metrics_libraries_are_not_loaded_without_metrics() -> None:
    code = (
        "import sys\n"
        "from sequencer.plugins.drawing import cli_gantt as gantt\n"
        "from sequencer.cli import status\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'prometheus_client', 'resvg_py'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
