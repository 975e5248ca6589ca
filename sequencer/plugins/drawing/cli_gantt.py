"""`report --gantt`: the time of each task and agent, and the critical path."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sequencer.cli.context import Invocation
from sequencer.cli.views.tables import format_table as table
from sequencer.cli.views.text import can_write, one_line, terminal_width
from sequencer.engine.run import Run
from sequencer.errors import UsageRefused
from sequencer.history.spans import Timeline
from sequencer.model.head import Head
from sequencer.plugins.drawing.diagram import print_drawing
from sequencer.plugins.drawing.gantt import NEEDED, Gantt, build_gantt, draw_gantt
from sequencer.plugins.drawing.gantt_picture import gantt_svg
from sequencer.plugins.drawing.pictures import write_picture

COLUMNS = 100
"""Width if the output is not a terminal."""
_SECONDS = ("wall_s", "work_s", "people_s", "critical_s")
_RATIOS = ("speed_up", "overhead", "utilisation", "peak", "places")


def report_gantt(
    invocation: Invocation, svg: Path | None, png: Path | None, width: int | None
) -> None:
    """Show the time of each task in one line, with the critical path and the speedup."""
    if invocation.is_json and (svg or png or width):
        raise UsageRefused("can't be used with a drawing", where="--json", hint="leave it out")
    run = invocation.run_to_show()
    head = run.head
    chart, timeline = build_gantt(run, head, invocation.notify)
    if invocation.is_json:
        invocation.print_json(_to_json(run, head, timeline, chart))
        return
    if not chart.rows:
        text = "nothing has happened yet" if head is not None else invocation.describe_not_started()
        invocation.notify(text)
        return
    if svg or png:
        write_picture(invocation, gantt_svg(chart), svg, png)
        return
    columns = width or terminal_width(sys.stdout) or COLUMNS
    is_ascii = not can_write(sys.stdout, NEEDED)
    print_drawing(draw_gantt(chart, columns, is_ascii=is_ascii), sys.stdout)
    if evidence := _list_evidence(timeline):
        head_of = ("STEP", "STEP_INDEX", "ATTEMPT", "SHOWN")
        invocation.echo(
            f"\n{table(head_of, evidence, right={1, 2}, max_width=columns, goes=(2, 1))}"
        )


def _list_evidence(timeline: Timeline) -> list[tuple[str, ...]]:
    """Return a row with the evidence of each attempt that has shown any."""
    return [
        (one_line(execution.step), str(execution.step_index), str(span.attempt), span.shown)
        for execution in timeline.executions
        for span in execution.spans
        if span.shown
    ]


def _to_json(run: Run, head: Head | None, timeline: Timeline, chart: Gantt) -> dict[str, Any]:
    figures = chart.figures
    roles = {row.name: row.role for row in chart.rows}
    on_path = frozenset(figures.critical)
    begin = min((span.begin for span in timeline.spans), default=0.0)
    return {
        "run": run.name,
        "workflow": head.workflow_name if head else None,
        "is_over": timeline.is_over,
        "began_at": datetime.fromtimestamp(begin, UTC).isoformat() if timeline.spans else None,
        "figures": {
            **{name: round(getattr(figures, name), 6) for name in _SECONDS},
            **{name: getattr(figures, name) for name in _RATIOS},
        },
        "critical_path": list(chart.critical),
        "executions": [
            {
                "step": execution.step,
                "role": roles.get(execution.step, ""),
                "from": list(execution.sources),
                "accepted": execution.is_accepted,
                "critical": number in on_path,
                "spans": [
                    {
                        "kind": str(span.kind),
                        "begin_s": round(span.begin - begin, 6),
                        "end_s": round(span.end - begin, 6),
                        "attempt": span.attempt,
                        "agent": span.agent,
                        "shown": span.shown,
                    }
                    for span in execution.spans
                ],
            }
            for number, execution in enumerate(timeline.executions)
        ],
    }
