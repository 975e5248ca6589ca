"""A workflow as a Mermaid flowchart.

Node ids are numbers of our own; a name appears only within quotes and with every mark
that Mermaid could read as syntax written as an entity, so that no name changes the chart.
"""

from __future__ import annotations

from itertools import pairwise

from sequencer.model.workflow import Workflow

_PLAIN = frozenset(" _-.,:/'+?")


def quoted(text: str) -> str:
    """Return *text* as a Mermaid string.

    >>> quoted('say "hi" <b>')
    '"say #34;hi#34; #60;b#62;"'
    """
    return '"' + "".join(c if c.isalnum() or c in _PLAIN else f"#{ord(c)};" for c in text) + '"'


def chart(workflow: Workflow) -> str:
    """Return the chart: the steps in order, and beside them the review cycle.

    >>> from sequencer.model.step import Step
    >>> print(chart(Workflow("demo", (Step(name="plan"), Step(name="build")))))
    flowchart TD
        s0["plan"]
        s1["build"]
        s0 --> s1
        s1 --> s0
    """
    steps = [(f"s{place}", step.name) for place, step in enumerate(workflow.steps)]
    lines = [f"{node}[{quoted(name)}]" for node, name in steps]
    first, last = steps[0][0], steps[-1][0]
    edges = [f"{a} --> {b}" for (a, _), (b, _) in pairwise(steps)]
    every, review = workflow.review_every, workflow.review
    if workflow.kind == "procedure":
        lines.append('done(["complete"])')
        edges.append(f"{last} --> done")
    elif review is None or not every:
        edges.append(f"{last} --> {first}")
    else:
        kinds = [(f"r{place}", review.step.name, name) for place, (_, name) in enumerate(steps)]
        lines += [f"{node}[[{quoted(f'{name} at {position}')}]]" for node, name, position in kinds]
        question = "next cycle: a review?" if every > 1 else "always a review"
        lines.append(f"cadence{{{quoted(question)}}}")
        edges += [f"{a} --> {b}" for (a, _, _), (b, _, _) in pairwise(kinds)]
        if every > 1:
            edges.append(f"cadence -->|{quoted(f'{every - 1} of {every} cycles')}| {first}")
            edges.append(f"{last} --> cadence")
        edges.append(f"cadence -->|{quoted(f'every {every}. cycle')}| {kinds[0][0]}")
        edges.append(f"{kinds[-1][0]} --> cadence")
        if every == 1:
            # The steps themselves never run then.
            lines = [line for line in lines if not line.startswith("s")]
            edges = [edge for edge in edges if not edge.startswith("s")]
    return "\n".join(["flowchart TD", *(f"    {line}" for line in (*lines, *edges))])
