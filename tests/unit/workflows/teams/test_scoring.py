from __future__ import annotations

from typing import Any

import pytest

from sequencer.model.request import Request
from sequencer.plugins.requests.routing import WORDS, RoutingSettings, Word, route
from sequencer.plugins.teams.options import ScoreSettings, TeamOptions
from sequencer.plugins.teams.scoring import KEYWORDS, Score, decide, find_classification, score
from sequencer.workflows.registry import Registry

FILLER = "It is about the same thing as before, once more. "
MEDIUM, LONG = FILLER * 17, FILLER * 41
"""833 and 2009 characters."""
TRACE = "Traceback (most recent call last):\n" + '  File "app.py", line 3, in f\n' * 20


def scored(word: Word | None, title: str = "x", text: str = "", **more: Any) -> Score:
    return score(classification=word, title=title, text=text, **more)


@pytest.mark.parametrize(
    ("word", "text", "expected", "size"),
    [
        ("orchestrator", "", 80, 4),
        # An 80 that a long text could never add to, and a sum that passed 100.
        ("orchestrator", LONG + "Refactor, migrate, redesign, overhaul.", 100, 4),
        ("debugger", "", 50, 2),
        # These three had 50 as well, below the threshold of 60 for ever.
        ("debugger", MEDIUM, 70, 3),
        ("debugger", LONG, 90, 4),
        ("debugger", "It is a race condition.", 60, 3),
        ("code", "", 0, 2),
        ("code", FILLER * 16, 0, 2),
        ("code", MEDIUM, 20, 2),
        ("code", LONG, 40, 2),
        ("code", "Refactor it, migrate it", 20, 2),
        ("code", LONG + "Refactor it, and migrate it.", 60, 3),
        ("code", LONG + "Redesign and overhaul it, full-stack, end-to-end.", 80, 4),
        ("code", ", ".join(KEYWORDS), 100, 4),
        (None, MEDIUM, 20, 2),
        *((word, LONG + ", ".join(KEYWORDS), 0, 1) for word in WORDS[:4]),
    ],
)
def test_the_score_decides_the_use_and_size_of_a_team(
    word: Word | None, text: str, expected: int, size: int
) -> None:
    found = scored(word, text=text)
    assert (found.score, found.team_size) == (expected, size)
    assert found.uses_team == (expected >= 60)
    assert sum(reason.points for reason in found.reasons) == expected


@pytest.mark.parametrize("text", [MEDIUM, TRACE, "We see a deadlock.", "## To do\n- a\n- b\n- c\n"])
def test_a_debugger_reaches_the_threshold_by_its_text(text: str) -> None:
    assert not scored("debugger").uses_team
    assert scored("debugger", text=text).uses_team


@pytest.mark.parametrize(
    ("text", "points", "told"),
    [
        ("- a\n- b\n- c\n", 10, "listed sub-tasks: 3"),
        ("- a\n" * 50, 30, "listed sub-tasks: 50"),
        ("Change a.py and b.py and b.py.", 4, "files: 2 (a.py, b.py)"),
        (" ".join(f"f{n}.py" for n in range(40)), 20, "files: 40 (f0.py, f1.py, f10.py, f11.py"),
        ("The API and the database and the CLI", 10, "components: 3 (api, database, cli)"),
    ],
)
def test_signals_in_the_text_add_points(text: str, points: int, told: str) -> None:
    (reason,) = scored("code", text=text).reasons
    assert reason.points == points
    assert reason.text.startswith(told)
    assert reason.text.endswith(" more)") == ("f11.py" in told)


EACH = {"each": 7, "free": 0, "max": 100}
BUG = "Steps to reproduce:\n- a\n- b\n" + TRACE


@pytest.mark.parametrize(
    ("written", "request_", "told"),
    [
        ({"classifications": {"debugger": 7}}, {}, (7, "debugger: several hypotheses can be")),
        ({"procedures": {"fix": 7}}, {"procedure": "fix"}, (7, "procedure fix")),
        ({"medium_points": 7}, {"text": MEDIUM}, (7, "a text of more than 800 characters")),
        ({"long_points": 7}, {"text": LONG}, (7, "a long text: more than 2000 characters")),
        ({"keywords": {"tidy": 7}}, {"title": "tidy"}, (7, "keywords: tidy")),
        ({"keywords": {"typo": -7}}, {"title": "a typo"}, (-7, "keywords: typo")),
        ({"labels": {"size/XL": 7}}, {"labels": ["size: xl"]}, (7, "label size-xl")),
        ({"subtasks": EACH}, {"text": "- a\n- b"}, (14, "listed sub-tasks: 2")),
        ({"files": EACH}, {"text": "a.py b.py a.py"}, (14, "files: 2 (a.py, b.py)")),
        ({"components": EACH}, {"text": "the server"}, (7, "components: 1 (server)")),
        ({"trace_lines": EACH}, {"text": BUG}, (100, "lines of stack traces: 21")),
        ({"reproduction_steps": EACH}, {"text": BUG}, (14, "steps to reproduce it: 2")),
    ],
)
def test_each_signal_has_its_own_rule(
    written: dict[str, Any], request_: dict[str, Any], told: tuple[int, str]
) -> None:
    settings = ScoreSettings.model_validate(written)
    found = scored("debugger", **{"title": "x", **request_}, settings=settings)
    (reason,) = (one for one in found.reasons if one.text.startswith(told[1]))
    assert reason.points == told[0]


@pytest.mark.parametrize("word", [None, "code"])
def test_traces_and_steps_to_reproduce_count_for_a_debugger_only(word: Word | None) -> None:
    settings = ScoreSettings.model_validate({"trace_lines": EACH, "reproduction_steps": EACH})
    assert scored(word, text=BUG, settings=settings).score == 0


@pytest.mark.parametrize("label", ["size/XL", "size: XL", "Size-xl", "size_XL", "SIZE XL"])
def test_labels_are_written_in_many_ways(label: str) -> None:
    assert scored("code", labels=[label]).score == 30


# --- the decision ---------------------------------------------------------------------

HIGH, LOW = scored("orchestrator"), scored("code")
ON = TeamOptions(enabled=True)


@pytest.mark.parametrize(
    ("found", "options", "word", "asked", "told"),
    [
        (HIGH, ON, "orchestrator", None, "yes: the score 80 reaches teams.threshold (60)"),
        (LOW, ON, "code", None, "no: the score 0 is below teams.threshold (60)"),
        (HIGH, TeamOptions(), "orchestrator", None, "no: teams.enabled is false"),
        (HIGH, ON, "planning", None, "no: 'planning' is not in teams.classifications"),
        (HIGH, ON, None, None, "no: its kind is not known"),
        (LOW, TeamOptions(), "question", True, "yes: --team was given"),
        (HIGH, ON, "orchestrator", False, "no: --no-team was given"),
        (
            *(HIGH, TeamOptions(enabled=True, classifications=("question",))),
            *("question", None, "no: 'question' is in teams.score.never"),
        ),
    ],
)
def test_the_decision_on_a_team_has_a_reason(
    found: Score, options: TeamOptions, word: Word | None, asked: bool | None, told: str
) -> None:
    choice = decide(found, options, word, asked)
    uses_team, _, why = told.partition(": ")
    assert choice.uses_team is (uses_team == "yes")
    assert why in choice.why
    assert choice.score is found


# --- which kind of request it is ---------------------------------------------------------


def routed(settings: RoutingSettings, *, explicit: str | None = None, **more: Any) -> Word | None:
    request = Request(**{"title": "Strawberries", **more})
    known = [*Registry().procedure_names, "mine", "other"]
    chosen = route(request, explicit=explicit, settings=settings, known=known, classify=None)
    return find_classification(request, chosen, settings)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({}, "code"),
        ({"title": "How does it work?"}, "question"),
        ({"title": "Search the web for the newest release"}, "transient"),
        ({"labels": ("bug",)}, "debugger"),
        ({"labels": ("Epic",)}, "orchestrator"),
        ({"explicit": "plan-mode", "labels": ("bug",)}, "planning"),
        ({"explicit": "release"}, None),
    ],
)
def test_the_classification_follows_from_the_procedure(
    more: dict[str, Any], word: Word | None
) -> None:
    assert routed(RoutingSettings(), **more) == word
