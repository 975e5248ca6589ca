"""What the page about the configuration says about the roles of a team."""

from __future__ import annotations

from tests.project.documents import ROOT
from tests.project.printed_schema import fields
from tests.project.test_configuration_docs import ROW

REFERENCE = (ROOT / "docs" / "reference" / "configuration.md").read_text()


def section() -> str:
    return REFERENCE.split("\n## Teams\n")[1].split("\n## ")[0]


def test_the_keys_of_a_role_are_listed() -> None:
    told = [row[0] for row in ROW.findall(section())]
    own = [*("writes", "worktree"), *(f"budget.{key}" for key in fields("Budget"))]
    assert fields("Role").keys() - fields("Step").keys() == {"writes", "worktree", "budget"}
    assert told == [f"teams.roles.NAME.{key}" for key in own]
    refused = fields("Step").keys() - fields("Role").keys()
    assert refused == {"name", "description", "requires_approval", "approval"}
    listed = "fields of a step except `name`, `description`, `requires_approval` and `approval`"
    assert listed in REFERENCE
