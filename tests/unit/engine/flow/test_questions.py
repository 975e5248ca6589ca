"""Questions that people are asked, and their answers."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.run_commands import RunCommands
from sequencer.errors import SequencerError, TransitionRefused, UnknownName, UsageRefused
from sequencer.model.commands import AnswerQuestion, Tell
from sequencer.model.graph.graph import Option
from tests.unit.engine.flow.labs import Lab, lab

YES = Option(label="Looks good", value="approve", description="It is merged then.")
NO = Option(label="Not yet", value="reject")
REVIEW = "a --> h{{Fine?}}; h -->|approve| b; h -->|reject| c; h -->|default| d"


def asking(folder: Path, text: str = REVIEW, says: Any = None, **node: Any) -> Lab:
    """Return a flow that waits at ``h``."""
    given = {"options": (YES, NO), **node}
    made = lab(folder, text, says, nodes={"h": given})
    made.refused()
    return made


def answered(made: Lab, said_: str) -> tuple[str, list[str]]:
    """Return the output that the answer is, and which agents run then."""
    made.answer("h", said_)
    flow = made.run().flow
    _, marking = flow.marking(made.head)
    output = flow.read_text(marking.outputs.get("h"))
    made.work()
    return output, made.accepted()[1:]


# --- questions ---------------------------------------------------------------------------


def test_a_question_has_its_text_options_and_deadline(tmp_path: Path) -> None:
    text = "Is {{output}} fine for {{state.who}}?"
    made = lab(
        tmp_path,
        REVIEW,
        {"a": "the draft"},
        nodes={"h": {"question": text, "options": (YES, NO), "timeout_ms": 60_000}},
        state={"who": "Ann"},
    )
    made.refused()
    (question,) = made.run().flow.questions(made.head)
    assert question.text == "Is the draft fine for Ann?"
    assert question.options == (YES, NO)
    assert question.asked_at.startswith("20")
    assert question.expires_at is not None
    assert question.expires_at > question.asked_at
    # Its token is as unique as that of a claim.
    assert question.token == made.head.token == 2


def test_a_question_whose_values_are_missing_can_be_answered(tmp_path: Path) -> None:
    made = asking(tmp_path, question="About {{state.gone}}")
    (question,) = made.run().flow.questions(made.head)
    assert question.text.startswith("About {{state.gone}}\n\n(the prompt asks for ")
    assert answered(made, "approve") == ("approve", ["b"])


# --- answers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "output", "ran"),
    [
        ("approve", "approve", ["b"]),
        ("  APPROVE ", "approve", ["b"]),
        ("looks good", "approve", ["b"]),
        ("Not_Yet", "reject", ["c"]),
        ("reject", "reject", ["c"]),
    ],
)
def test_an_answer_is_an_options_value_or_label(
    tmp_path: Path, typed: str, output: str, ran: list[str]
) -> None:
    assert answered(asking(tmp_path), typed) == (output, ran)


def test_an_unknown_answer_is_refused_and_the_options_are_listed(tmp_path: Path) -> None:
    made = asking(tmp_path)
    before = made.head
    with pytest.raises(UnknownName, match=r"approve.*reject"):
        made.answer("h", "perhaps")
    assert made.head == before


def test_a_question_without_options_takes_free_text(tmp_path: Path) -> None:
    made = asking(tmp_path, "a --> h{{Notes?}} --> b", options=())
    with pytest.raises(UsageRefused, match="empty"):
        made.answer("h", "  \n")
    assert answered(made, "x" * 20_000)[1] == ["b"]


def answered_text(made: Lab) -> str:
    _, marking = made.run().flow.marking(made.head)
    return made.run().flow.read_text(marking.outputs["h"])


def test_only_one_of_several_simultaneous_answers_counts(tmp_path: Path) -> None:
    """Both have read the same question; the second must not replace what the first said."""
    made = asking(tmp_path, "a --> h{{Notes?}} --> b", options=())
    barrier = threading.Barrier(8)
    good: list[str] = []
    refused: list[SequencerError] = []

    def say(text: str) -> None:
        barrier.wait()
        try:
            made.answer("h", text)
            good.append(text)
        except SequencerError as error:
            refused.append(error)

    threads = [threading.Thread(target=say, args=(f"text {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(good), len(refused)) == (1, 7)
    assert answered_text(made) == good[0]
    assert [fact["outcome"]["output"] for fact in made.facts("answered")] == good


def test_a_second_answer_does_not_overwrite_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asking(tmp_path, "a --> h{{Notes?}} --> b", options=())
    store = made.store()
    real = store.update

    def late(*args: Any, **options: Any) -> Any:
        # Between its look and its turn somebody else answers.
        made.answer("h", "first")
        return real(*args, **options)

    monkeypatch.setattr(store, "update", late)
    with pytest.raises(UnknownName):
        RunCommands(store, made.workflow).do(AnswerQuestion("h", "second"), by="bob")
    assert answered_text(made) == "first"


def test_an_answer_to_an_earlier_question_of_a_loop_is_refused(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}}; h -->|no| a; h -->|yes| b")
    made.refused()
    (question,) = made.run().flow.questions(made.head)
    made.answer("h", "no")
    made.refused()
    with pytest.raises(TransitionRefused, match="asks again"):
        made.run().do(AnswerQuestion("h", "yes", question.token), by="bob")
    (again,) = made.run().flow.questions(made.head)
    assert again.token > question.token
    made.run().do(AnswerQuestion("h", "yes", again.token), by="bob")
    assert made.work().usage.steps == 1


def test_an_answer_is_refused_if_no_question_is_open(tmp_path: Path) -> None:
    made = lab(tmp_path, "a --> h{{H}} --> b")
    with pytest.raises(TransitionRefused, match="has not started"):
        made.answer("h", "x")
    assert not (tmp_path / "sync").exists()
    made.begun()
    with pytest.raises(UnknownName, match="open question"):
        made.answer("h", "x")
    with pytest.raises(UnknownName):
        made.answer("nobody", "x")


def test_an_answer_after_the_deadline_is_refused(tmp_path: Path) -> None:
    """Where the run goes must not depend on who comes first by then."""
    made = asking(tmp_path, timeout_ms=500)
    time.sleep(0.55)
    with pytest.raises(TransitionRefused, match="the time to answer 'h' ended"):
        answered(made, "approve")


def test_a_done_node_that_a_timeout_leads_back_to_can_get_a_message(tmp_path: Path) -> None:
    made = asking(tmp_path, "a --> h{{Fine?}}; h --> b", timeout_ms=60_000, on_timeout="a")
    made.run().do(Tell("be shorter", "a"), by="ann")
    (fact,) = made.facts("told")
    assert fact["step"] == "a"


def test_a_done_node_that_nothing_leads_back_to_gets_no_message(tmp_path: Path) -> None:
    made = asking(tmp_path, "a --> h{{Fine?}}; h --> b", timeout_ms=60_000, on_timeout="b")
    with pytest.raises(TransitionRefused, match="'a' is done, so it would not read it"):
        made.run().do(Tell("be shorter", "a"), by="ann")
