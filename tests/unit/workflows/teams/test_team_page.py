"""The page about teams has the points, and the former names, of the tables in the code."""

from __future__ import annotations

import re

from sequencer.files.yamlfile import format_key_path
from sequencer.plugins.teams.scoring import CLASSIFICATIONS, KEYWORDS, LABELS
from sequencer.project.legacy import TEAM_KEYS
from tests.project.test_team_docs import section


def tables() -> list[list[tuple[str, str]]]:
    """Return the tables with two columns of the reference's section on teams."""
    row = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
    found = [row.findall(part) for part in section().split("\n\n")]
    return [table[1:] for table in found if table]


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
