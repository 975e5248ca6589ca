"""A chart that changes while several runs of it are open in one process."""

from __future__ import annotations

from pathlib import Path

from sequencer import Run
from sequencer.project.flows import resolve_run
from sequencer.testing import ScratchProject

CHART = (
    "```mermaid\nflowchart TD\n  a --> {last}\n```\n\n### a\nDo it.\n\n### {last}\nDo the rest.\n"
)


def test_a_run_notices_a_change_that_another_run_has_read_first(tmp_path: Path) -> None:
    scratch = ScratchProject(tmp_path / "p", {"agent": "rehearsal"})
    chart = scratch.folder / "flow.md"
    chart.write_text(CHART.format(last="b"))
    project = scratch.open()
    runs = []
    for name in ("one", "two"):
        found, source = resolve_run(project, "flow.md", {}, name, is_new=False)
        project.run(found, source=source).commands.begin()
        runs.append(project.run(found))

    def last_node(run: Run) -> str:
        return run.workflow_for(run.head).nodes[-1].id

    assert [last_node(run) for run in runs] == ["b", "b"]
    chart.write_text(CHART.format(last="changed"))
    assert [last_node(run) for run in runs] == ["changed", "changed"]
