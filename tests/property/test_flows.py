"""Flows against the execution rules by brute force, and what holds of every flow."""

from __future__ import annotations

from collections import Counter

from sequencer.model.marking import FlowStatus
from sequencer.model.transitions import Event
from sequencer.resolution.simulation import Replay, simulate
from tests.property.amounts import for_all
from tests.property.flow_oracle import Oracle
from tests.property.random_flows import Case, cases

EXAMPLES = 1_000
BEGUN = (Event.CLAIMED, Event.ASKED, Event.STARTED)
DONE = (Event.SUCCEEDED, Event.ANSWERED, Event.PASSED)
ENDS = {status.value for status in FlowStatus} - {"running", "cancelled"}


def replay(case: Case) -> Replay:
    return simulate(case.workflow, case.parts)


def test_every_flow_goes_as_the_rules_by_brute_force_say() -> None:
    def check(case: Case) -> None:
        expected = Oracle(case.workflow, case.script).run()
        found = replay(case)
        assert list(found.trace) == expected.trace
        assert (found.status, found.iterations) == (expected.status, expected.iterations)
        assert found.state == expected.state
        back = sorted(expected.back)
        assert sorted(case.graph.back_edges) == back

    for_all(check, cases(), examples=EXAMPLES)
