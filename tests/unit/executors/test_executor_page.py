"""The page about executors says what the tables of their classes say."""

from __future__ import annotations

from importlib import import_module

from sequencer import Step
from sequencer.executors.protocol import EVERY_EXECUTOR
from sequencer.project.agents import EXECUTORS
from sequencer.project.schema import AGENT_KINDS, BUILTIN_AGENTS
from tests.project.documents import ROOT
from tests.project.test_reference import first_words, section, table, words

EXECUTOR_PAGE = (ROOT / "docs" / "reference" / "executors.md").read_text()
FIELDS = "Which step fields each supports"


def test_the_fields_each_executor_supports_are_listed() -> None:
    rows = {words(row[0])[0]: row[1:] for row in table(section(EXECUTOR_PAGE, FIELDS))}
    kinds = ["claude", "codex", "gemini", "opencode", "anthropic", "command"]
    assert set(rows) | EVERY_EXECUTOR == set(Step.model_fields)
    for place, kind in enumerate(kinds[:-1]):
        said = {field for field, cells in rows.items() if cells[place] == "yes"}
        recipe = EXECUTORS[kind]
        supported = getattr(import_module(recipe.module), recipe.executor).supported_fields
        assert said == supported - EVERY_EXECUTOR, kind
    assert {field for field, cells in rows.items() if cells[-1] == "yes"} == {"idle_timeout_s"}


def test_the_fields_every_executor_supports_are_listed() -> None:
    sentence = section(EXECUTOR_PAGE, FIELDS).split("All support ")[1].split(".\n")[0]
    assert set(words(sentence)) == EVERY_EXECUTOR


def test_the_agents_that_need_no_entry() -> None:
    listed = first_words(EXECUTOR_PAGE.split("## Which agent")[0])
    assert set(listed) == set(BUILTIN_AGENTS)
    assert EXECUTORS.keys() - set(BUILTIN_AGENTS) == {"command", "scripted"}
    assert EXECUTORS.keys() <= set(AGENT_KINDS)
