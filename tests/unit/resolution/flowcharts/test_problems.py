from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError
from sequencer.workflows.flowfile.problems import MAX_LISTED, MAX_PROBLEMS, Findings, FlowErrors


def raised(findings: Findings) -> FlowErrors:
    with pytest.raises(FlowErrors) as refused:
        findings.ensure_none()
    return refused.value


def test_without_errors_nothing_is_raised() -> None:
    findings = Findings(Path("f.md"))
    findings.warn("W-X", "a", "strange", (1, 2))
    findings.ensure_none()
    assert not findings.has_errors
    assert [str(problem) for problem in findings.warnings] == ["f.md:1:2: W-X a: strange"]


def test_errors_come_in_the_order_of_the_file_those_of_no_place_first() -> None:
    findings = Findings(Path("dir/f.md"))
    findings.error("E-B", "b", "second", (3, 10), "do that")
    findings.error("E-A", "a", "first", (3, 9))
    findings.error("E-C", "c", "nowhere")
    error = raised(findings)
    assert [problem.code for problem in error.problems] == ["E-C", "E-A", "E-B"]
    assert str(error).splitlines() == [
        "dir/f.md: E-C c: nowhere",
        "dir/f.md:3:9: E-A a: first",
        "dir/f.md:3:10: E-B b: second",
        "  do that",
    ]


def test_what_another_reader_found_keeps_its_place_and_hint() -> None:
    findings = Findings(Path("f.md"))
    findings.of("E-X", "x", ConfigurationError("broken", where="f.md:7:8", hint="mend it"))
    findings.of("E-X", "y", ConfigurationError("lost", where="f.md"))
    lost, broken = raised(findings).problems
    assert (broken.position, broken.hint, broken.detail) == ((7, 8), "mend it", "broken")
    assert (lost.position, lost.where) == (None, "f.md")


def test_too_many_are_counted() -> None:
    findings = Findings(Path("f.md"))
    for place in range(MAX_PROBLEMS + 7):
        findings.error("E-X", "x", "wrong", (place + 1, 1))
        findings.warn("W-X", "x", "strange", (place + 1, 1))
    problems = raised(findings).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message == "E-MORE f.md: 7 more problems are not shown"
    assert len(findings.warnings) == MAX_PROBLEMS


def test_known_names_are_listed_the_nearest_first_and_not_without_end() -> None:
    findings = Findings(Path("f.md"))
    assert findings.known("x", []) == "there is none"
    assert findings.known("biuld", ["plan", "build"]) == (
        "did you mean 'build'? there are: plan, build"
    )
    assert findings.known("zzz", ["plan"]) == "there are: plan"
    many = [f"node{place}" for place in range(MAX_LISTED + 1)]
    assert findings.known("zzz", many).endswith("node19, …")
    assert "did you mean" not in findings.known("node", [f"node{place}" for place in range(501)])
