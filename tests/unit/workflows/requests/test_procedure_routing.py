from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import UnknownName
from sequencer.model.request import Request, Route
from sequencer.plugins.requests.routing import (
    ATTEMPTS,
    MAX_REASON_CHARS,
    WORDS,
    ClassificationFailed,
    RoutingSettings,
    route,
)
from sequencer.workflows.registry import PROCEDURES

KNOWN = frozenset(PROCEDURES)
Classifier = Callable[[Request], str]


class Answers:
    """A classifier that gives one answer after the other, and counts."""

    def __init__(self, *answers: str | Exception) -> None:
        self.left = list(answers)
        self.asked = 0

    def __call__(self, request: Request) -> str:
        del request
        self.asked += 1
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def routed(
    title: str = "Strawberries",
    *labels: str,
    explicit: str | None = None,
    classify: Classifier | None = None,
    settings: RoutingSettings | None = None,
) -> Route:
    return route(
        Request(title=title, labels=labels),
        explicit=explicit,
        settings=settings or RoutingSettings(),
        known=KNOWN,
        classify=classify,
    )


def tried(found: Route) -> list[tuple[str, str | None]]:
    return [(one.source, one.result) for one in found.considered]


@pytest.mark.parametrize(
    ("title", "labels", "expected", "beaten"),
    [
        ("x", ("epic", "bug"), ("debugger-full", "label", None), "orchestrator-full"),
        ("How does it work?", (), ("simple-question", "rules", "question"), None),
    ],
)
def test_losing_candidates_are_reported(
    title: str, labels: tuple[str, ...], expected: tuple[object, ...], beaten: str | None
) -> None:
    found = routed(title, *labels)
    assert (found.procedure, found.source, found.classification) == expected
    last = found.considered[-1]
    assert (last.result, "looked at last" in last.why) == (beaten or expected[0], bool(beaten))
    assert Route.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("labels", "procedure", "label"),
    [
        (("bug",), "debugger-full", "bug"),
        (("ui", "Bug"), "debugger-full", "Bug"),
        (("DEBUGGER",), "debugger-full", "DEBUGGER"),
        (("epic",), "orchestrator-full", "epic"),
        (("Orchestrator", "x"), "orchestrator-full", "Orchestrator"),
        (("epic", "bug"), "debugger-full", "bug"),
    ],
)
def test_labels_decide_before_a_classification(
    labels: tuple[str, ...], procedure: str, label: str
) -> None:
    classify = Answers()
    found = routed("How does it work?", *labels, classify=classify)
    assert (found.procedure, found.source, found.classification) == (procedure, "label", None)
    assert f"label {label!r} is one of routing.labels." in found.reason
    assert classify.asked == 0


@pytest.mark.parametrize(
    "failure", [ClassificationFailed("10 s are over"), "perhaps code", ClassificationFailed("a\nb")]
)
def test_a_classifier_is_asked_once_more(failure: str | Exception) -> None:
    classify = Answers(failure, "question")
    found = routed("x", classify=classify)
    assert (found.procedure, found.source) == ("simple-question", "classification")
    assert classify.asked == ATTEMPTS == 2
    assert tried(found)[2:] == [("classification", None), ("classification", "simple-question")]
    assert found.considered[2].why.startswith("attempt 1: ")
    assert "\n" not in found.considered[2].why


def test_a_classifier_that_fails_twice_leaves_it_to_the_fallback() -> None:
    classify = Answers("x" * 10_000, ClassificationFailed("y " * 10_000), "code")
    found = routed("How does it work?", classify=classify)
    assert (found.procedure, found.source) == ("full-development", "fallback")
    assert "routing.fallback" in found.reason
    assert classify.asked == 2
    whys = [one.why for one in found.considered if one.source == "classification"]
    assert [why[:9] for why in whys] == ["attempt 1", "attempt 2"]
    assert all(len(why) < MAX_REASON_CHARS + 20 for why in whys)


@pytest.mark.parametrize(
    ("title", "labels", "settings", "where"),
    [
        ("Add it", (), {"procedures": {"code": "gone"}}, "routing.procedures.code"),
        ("x", ("bug",), {"procedures": {"debugger": "gone"}}, "routing.procedures.debugger"),
        ("x", (), {"fallback": "gone"}, "routing.fallback"),
    ],
)
def test_an_unknown_procedure_is_an_error_and_not_skipped(
    title: str, labels: tuple[str, ...], settings: dict[str, object], where: str
) -> None:
    with pytest.raises(UnknownName, match="unknown procedure 'gone'") as refused:
        routed(title, *labels, settings=RoutingSettings.model_validate(settings))
    assert refused.value.where == where


LABELS = st.lists(st.sampled_from(["bug", "EPIC", "ui", "Feature", "x"]), max_size=4)
ANSWER = st.sampled_from(WORDS) | st.text(max_size=20) | st.builds(ClassificationFailed, st.text())


@given(
    title=st.text(min_size=1, max_size=200),
    text=st.text(max_size=200),
    labels=LABELS,
    explicit=st.none() | st.sampled_from(sorted(KNOWN)),
    answers=st.none() | st.tuples(ANSWER, ANSWER),
)
def test_every_request_gets_exactly_one_procedure(
    title: str,
    text: str,
    labels: list[str],
    explicit: str | None,
    answers: tuple[str | Exception, str | Exception] | None,
) -> None:
    classify = None if answers is None else Answers(*answers)
    found = route(
        Request(title=title, text=text, labels=tuple(labels)),
        explicit=explicit,
        settings=RoutingSettings(),
        known=KNOWN,
        classify=classify,
    )
    assert found.procedure in KNOWN
    chosen = [one for one in found.considered if one.result is not None]
    assert chosen[0].result == found.procedure
    assert chosen[0].source == found.source
    assert chosen[0].why == found.reason
    if explicit is not None:
        assert (found.procedure, found.source) == (explicit, "explicit")
    elif {label.casefold() for label in labels} & {"bug", "epic"}:
        assert found.source == "label"
    elif classify is not None:
        assert 1 <= classify.asked <= ATTEMPTS
        assert found.source in ("classification", "fallback")
    else:
        assert found.source in ("rules", "fallback")
