"""Messages to tasks: who reads them, when, and what becomes of what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import TransitionRefused, UnknownName, UsageRefused
from tests.unit.engine.flow.labs import Hold, failed, let_go, until
from tests.unit.engine.flow.team_labs import JUDGE, YES, no, task, team

LINE = (task("a"), task("b", "a"))


def heard(prompt: str) -> str:
    """Return what a prompt says behind the title of the messages."""
    return prompt.partition("# Messages to you")[2].strip()


LATE = "# Messages that came too late for others"


@pytest.mark.parametrize("says", ["done", ""])
def test_the_next_task_reads_a_message_that_came_too_late(tmp_path: Path, says: str) -> None:
    """Else a message to a task that needs no other attempt would be lost without a word."""
    hold = Hold(says)
    made = team(tmp_path, [task("a"), task("b", "a"), task("c", "b")], {"a": hold})
    with let_go(hold):
        at_work = made.works()
        hold.wait()
        made.tell("a", "take port 80")
        hold.go.set()
        at_work.summary()
    (behind,) = made.actor.prompts_of("b")
    late = behind.partition(LATE)[2]
    assert late.strip().startswith("- to a, ann, ")
    assert "take port 80" in late
    assert "take port 80" not in made.actor.prompts_of("c")[0]
    assert heard(behind) == ""


def test_a_message_to_a_task_that_is_done_is_refused(tmp_path: Path) -> None:
    made = team(tmp_path, LINE)
    made.work(limits={"max_steps": 1})
    before = made.head.revision
    with pytest.raises(TransitionRefused, match="task 'a' is done"):
        made.tell("a", "too late")
    assert made.head.revision == before


def test_a_judge_that_judges_again_receives_messages(tmp_path: Path) -> None:
    hold = Hold("mended")
    made = team(tmp_path, [task("check", **JUDGE)], {"check": [no(), YES], "check-fix-1": hold})
    with let_go(hold):
        at_work = made.works()
        hold.wait()
        made.tell("check", "be lenient")
    at_work.summary()
    assert "be lenient" in heard(made.actor.prompts_of("check")[1])


def test_a_failed_task_receives_a_message_sent_before_its_retry(tmp_path: Path) -> None:
    hold = Hold()
    tasks = [task("a"), task("long"), task("b", "a")]
    made = team(tmp_path, tasks, {"a": [failed(), "ok"], "long": hold})
    with let_go(hold):
        at_work = made.works()
        until(lambda: made.facts("failed"))
        made.tell("a", "here is the key")
        made.retry()
        until(lambda: "b" in made.accepted())
    at_work.summary()
    assert "here is the key" in heard(made.actor.prompts_of("a")[1])


def test_an_unknown_task_is_refused_and_the_known_ones_are_listed(tmp_path: Path) -> None:
    made = team(tmp_path, LINE)
    made.begun()
    with pytest.raises(UnknownName) as caught:
        made.tell("aa", "hello")
    assert "'aa'" in str(caught.value)
    assert "a, b" in (caught.value.hint or "")
    assert made.facts("told") == []


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_message_is_refused(tmp_path: Path, text: str) -> None:
    made = team(tmp_path, LINE)
    made.begun()
    with pytest.raises(UsageRefused, match="tell: the text is empty"):
        made.tell("a", text)


@pytest.mark.parametrize("answer", ["ok", failed()])
def test_a_run_that_has_ended_takes_no_message(tmp_path: Path, answer: str) -> None:
    made = team(tmp_path, LINE, {"a": answer})
    made.ended()
    with pytest.raises(TransitionRefused, match="the run has ended as"):
        made.tell("b", "hello?")
    assert made.facts("told") == []
