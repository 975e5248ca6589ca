"""What is read for the pages: whole journals beside other work, the ends of long ones at first."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sequencer import Head, Run, commands, open_project
from sequencer.plugins.web import records
from sequencer.plugins.web.pages import took
from sequencer.plugins.web.records import RunStory
from sequencer.plugins.web.server import Answers
from sequencer.plugins.web.site import Site
from tests.web.conftest import words
from tests.web.sample import work

RUN = "/p/shop/login-timeout"
FORM = "a token of the forms"


def test_other_pages_do_not_wait_while_all_journals_are_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(site, FORM)
    is_reading, may_read, follow = threading.Event(), threading.Event(), RunStory.read_facts

    def slow(story: RunStory, run: Run, head: Head, *, is_whole: bool = True) -> None:
        if threading.current_thread() is reader:
            is_reading.set()
            assert may_read.wait(30)
        follow(story, run, head, is_whole=is_whole)

    monkeypatch.setattr(RunStory, "read_facts", slow)
    reader = threading.Thread(target=site.read_ahead)
    reader.start()
    try:
        assert is_reading.wait(30)
        assert "Is the report right?" in answers.render_page(RUN)
    finally:
        may_read.set()
        reader.join(30)
    for row in site.rows():
        assert not row.project.has_unread_story(row)
    assert "Total" in answers.render_page("/costs")


@pytest.mark.slow
def test_only_the_end_of_a_long_history_is_read_until_more_is_needed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(site, FORM)
    monkeypatch.setattr(records, "LONG", 50)
    monkeypatch.setattr(records, "ENOUGH", 20)
    work(tmp_path / "shop", None, "loop", 60)
    page = answers.render_page("/p/shop/-")
    assert "69 started, newest first" in words(page)
    row = site.project("shop").row("-")
    story = site.project("shop").story(row, is_whole=False)
    assert not story.is_whole
    assert 15 < len(story.steps) < 30
    for step in story.steps.values():
        assert [one.state for one in step.tries] == ["done"]
        assert step.last.began
    assert "main is done" in answers.render_page("/p/shop/-/step/67")
    assert not story.is_whole
    assert "supervisor is done" in answers.render_page("/p/shop/-/step/0")
    assert story.is_whole
    assert [*story.steps] == [str(index) for index in range(69)]
    known = [fact["revision"] for fact in story.facts]
    assert known == [fact["revision"] for fact in row.run.history()]
    work(tmp_path / "shop", None, "loop", 2)
    assert "71 started" in words(answers.render_page("/p/shop/-"))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, ""), (0.31, "0.3 s"), (340, "5 min 40 s"), (7260, "2 h 1 min")]
)
def test_durations_are_shown_with_their_units(seconds: float, said: str) -> None:
    assert took(seconds) == said


def test_rendering_a_page_again_reads_no_whole_journal(site: Site) -> None:
    answers = Answers(site, FORM)
    answers.render_page("/costs")
    answers.render_page("/")
    opened: list[str] = []
    is_counting = True

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and is_counting and "journal" in str(args[0]):
            opened.append(str(args[0]))

    sys.addaudithook(hear)  # there is no way to take it back
    # A run's newest record has its refused tools, and a step's has its whole answer.
    most = {"/": 0, "/runs": 0, RUN: 1, f"{RUN}/step/tests": 1, "/costs": 0}
    for address, count in most.items():
        opened.clear()
        answers.render_page(address)
        assert len(opened) <= count, (address, opened)
    row = next(row for row in site.rows() if row.run.name == "login-timeout")
    row.project.open_for_change().run(row.run.name).do(commands.Stop("enough"))
    opened.clear()
    answers.render_page(RUN)
    is_counting = False
    assert 1 <= len(opened) <= 4, opened


def test_a_run_that_was_reset_has_only_what_came_after(site: Site, tmp_path: Path) -> None:
    answers = Answers(site, FORM)
    assert "supervisor" in answers.render_page("/p/shop/-/step/0")
    open_project(tmp_path / "shop", trust=True).run(None).do(commands.Reset())
    assert "0 started" in words(answers.render_page("/p/shop/-"))
    row = site.project("shop").row("-")
    known = [fact["revision"] for fact in row.project.story(row).facts]
    assert known == [fact["revision"] for fact in row.run.history()]
