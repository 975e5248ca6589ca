"""An activity as the Markdown that a tracker shows."""

from __future__ import annotations

import re

from sequencer.activity.protocol import Activity

_MARK = re.compile(r"([\\`*_{}\[\]<>#|~@])")


def plain(text: str) -> str:
    r"""Return *text* as Markdown that shows it as it is, on one line.

    >>> plain("fix_all *now*\n@team")
    'fix\\_all \\*now\\* \\@team'
    """
    return _MARK.sub(r"\\\1", " ".join(text.split()))


def result_text(activity: Activity) -> str:
    """Return a result's text: a line that names the step, its body, figures, what is asked."""
    # The end of a flowchart's or a team's run is no step's.
    step = f"**{plain(activity.step)}**" if activity.step else ""
    title = f"{step} {plain(activity.title)}".strip()
    metrics = "" if activity.metrics is None else activity.metrics.text(plain)
    parts = (title, activity.body.strip(), metrics, activity.question)
    return "\n\n".join(part for part in parts if part)
