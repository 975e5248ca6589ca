from __future__ import annotations

import json

from sequencer.workflows.simulate import NodeScript, simulate
from tests.flows import workflow


def test_joined_markers_one_after_the_other_do_not_multiply_what_they_hand_on() -> None:
    levels = 40
    lines = ["a & b --> m0((M))"]
    lines += [
        f"m{n} --> l{n}((L)) & r{n}((R)); l{n} & r{n} --> m{n + 1}((M))" for n in range(levels)
    ]
    lines += [f"m{levels} --> q{{Q}}; q -->|yes| x; q --> y"]
    found = simulate(
        workflow("\n".join(lines), entries=("a", "b")),
        {"a": NodeScript(("1",)), "b": NodeScript(("2",))},
    )
    chosen = next(line for line in found.trace if "done q" in line)
    assert json.loads(chosen.partition(" = ")[2]) == {"a": "1", "b": "2"}
