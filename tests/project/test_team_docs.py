"""What the pages say about when a team is used, and under which names it is configured."""

from __future__ import annotations

import re

from sequencer import Step
from sequencer.files.yamlfile import format_key_path
from sequencer.model.graph.task import Budget
from sequencer.plugins.teams.scoring import CLASSIFICATIONS, KEYWORDS, LABELS
from sequencer.plugins.teams.team import STEP_FIELDS, Role
from sequencer.project.legacy import TEAM_KEYS
from tests.project.documents import ROOT
from tests.project.test_configuration_docs import ROW

REFERENCE = (ROOT / "docs" / "reference" / "configuration.md").read_text()


def tables() -> list[list[tuple[str, str]]]:
    """Return the tables with two columns of the reference's section on teams."""
    row = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
    found = [row.findall(part) for part in section().split("\n\n")]
    return [table[1:] for table in found if table]


def section() -> str:
    return REFERENCE.split("\n## Teams\n")[1].split("\n## ")[0]


def by_points(table: list[tuple[str, str]]) -> dict[str, int]:
    return {name: int(points) for points, names in table for name in names.split(", ")}


def test_the_built_in_points_are_listed() -> None:
    kinds, keywords, labels, _ = tables()
    assert {word: int(points) for word, points in kinds} == CLASSIFICATIONS
    assert by_points(keywords) == KEYWORDS
    assert by_points(labels) == LABELS


def test_the_aliases_are_listed() -> None:
    aliases = tables()[-1]
    assert aliases == [
        (f"`{format_key_path(a)}`", f"`{format_key_path(b)}`") for a, b in TEAM_KEYS.items()
    ]


def test_the_keys_of_a_role_are_listed() -> None:
    told = [row[0] for row in ROW.findall(section())]
    fields = [*("writes", "worktree"), *(f"budget.{key}" for key in Budget.model_fields)]
    assert set(Role.model_fields) == {"step", "writes", "worktree", "budget"}
    assert told == [f"teams.roles.NAME.{key}" for key in fields]
    refused = set(Step.model_fields) - STEP_FIELDS
    assert refused == {"name", "description", "requires_approval", "approval"}
    listed = "fields of a step except `name`, `description`, `requires_approval` and `approval`"
    assert listed in REFERENCE
