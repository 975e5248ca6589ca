from __future__ import annotations

from typing import Any

import pytest

from sequencer.frozen.fields import ValidationError
from sequencer.model.request import Request
from sequencer.plugins.requests.routing import (
    SHARED_PROMPT,
    SYSTEM_PROMPTS,
    RoutingSettings,
    choose_classifier,
    list_system_prompts,
    system_prompts_for,
)
from tests.project.documents import ROOT


def settings(**raw: Any) -> RoutingSettings:
    return RoutingSettings.model_validate(raw)


def prompts(*labels: str, **raw: Any) -> tuple[str, ...]:
    return system_prompts_for(Request(title="x", labels=labels), settings(**raw))


@pytest.mark.parametrize(
    ("labels", "prompt"),
    [
        (("bug",), "debugger"),
        (("Feature",), "builder"),
        (("ENHANCEMENT", "x"), "builder"),
        (("prd",), "scoper"),
        (("x", "epic"), "orchestrator"),
        (("epic", "bug"), "debugger"),
        (("prd", "feature"), "builder"),
    ],
)
def test_a_label_chooses_the_system_prompt(labels: tuple[str, ...], prompt: str) -> None:
    assert prompts(*labels) == (f"system/{prompt}.md", SHARED_PROMPT)


@pytest.mark.parametrize("entry", [{}, {"labels": ["a"]}, {"prompt": "a.md"}])
def test_a_custom_entry_needs_labels_and_a_prompt(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="'mine' needs labels and a prompt"):
        settings(system_prompts={"mine": entry})


def test_every_prompt_that_may_be_used_is_listed() -> None:
    assert list_system_prompts(settings()) == [
        SHARED_PROMPT,
        *(entry.prompt for entry in SYSTEM_PROMPTS.values()),
    ]
    fewer = {"scoper": {"labels": []}, "mine": {"labels": ["a"], "prompt": "a.md"}}
    found = list_system_prompts(settings(system_prompts=fewer))
    assert "a.md" in found
    assert "system/scoper.md" not in found


@pytest.mark.parametrize(
    "raw",
    [
        {"colour": 1},
        {"labels": {"builder": ["x"]}},
        {"labels": {"debugger": ["a\nb"]}},
        {"labels": {"debugger": [""]}},
        {"timeout_s": 0},
        {"timeout_s": float("inf")},
        {"procedures": {"codes": "x"}},
        {"substitutions": {"": "x"}},
        {"system_prompts": {"debugger": {"file": "x"}}},
    ],
)
def test_wrong_settings_are_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**raw)


@pytest.mark.parametrize(
    ("classifier", "default", "agent"),
    [
        ("auto", None, None),
        ("auto", "claude", "claude"),
        ("rules", "claude", None),
        ("quick", "claude", "quick"),
        ("quick", None, "quick"),
    ],
)
def test_the_settings_choose_the_classifier(
    classifier: str, default: str | None, agent: str | None
) -> None:
    assert choose_classifier(settings(classifier=classifier), default) == agent


def test_the_page_lists_the_built_in_system_prompts_with_their_labels() -> None:
    section = (
        (ROOT / "docs" / "reference" / "configuration.md").read_text().split("\n## Routing\n")[1]
    )
    table = section.split("| entry | labels | file |\n")[1].split("\n\n")[0]
    told = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in table.splitlines()]
    assert told[1:] == [
        (name, ", ".join(entry.labels or ()), entry.prompt)
        for name, entry in SYSTEM_PROMPTS.items()
    ]
