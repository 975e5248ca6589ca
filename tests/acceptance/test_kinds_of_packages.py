"""What a person sees of a run asks the package's kind of workflow, as the loop does."""

from __future__ import annotations

import json
from pathlib import Path

from tests.acceptance.packages import Packages

CONFIGURATION = """\
agent: rehearsal
workflow: {name: own}
workflows: {own: {kind: closed, steps: [{name: plan, text: Plan it.}, {name: work, text: Do it.}]}}
"""
KIND = """\
from msgspec.structs import replace

from sequencer.model.kind import ReadinessKind
from sequencer.model.sequence.sequence_kind import SequenceKind


class Closed(SequenceKind):
    def list_upcoming(self, head, count, step_index=None):
        return super().list_upcoming(head, count, 1 if step_index is None else step_index)

    def check_readiness(self, head, limits, *, at):
        state = super().check_readiness(head, limits, at=at)
        return replace(state, kind=ReadinessKind.LIMIT, message="closed today")
"""


def test_status_and_a_dry_run_ask_the_kind(tmp_path: Path) -> None:
    here = Packages(tmp_path)
    (here.project / "orchestration.yaml").write_text(CONFIGURATION)
    here.package("acme-seq", {"kinds": {"closed": "acme:Closed"}}, acme=KIND)
    assert json.loads(here.run("run", "--dry-run", "--json"))["step"] == "work"
    here.run("run")
    assert "closed today" in here.run("status")


def test_a_kind_that_lists_dicts_is_the_fault_of_its_package(tmp_path: Path) -> None:
    here = Packages(tmp_path)
    (here.project / "orchestration.yaml").write_text(CONFIGURATION)
    listing = "return super().list_upcoming(head, count, 1 if step_index is None else step_index)"
    odd = KIND.replace(listing, "return [{'step': 'plan'}]")
    here.package("acme-seq", {"kinds": {"closed": "acme:Closed"}}, acme=odd)
    for command in ("plan", "status"):
        said = here.run(command, code=2)
        assert "the package 'acme-seq' returned an object of type dict, which is not a " in said
