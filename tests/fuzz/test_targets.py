"""Each door with mutants of real files, on every push; and that a broken one is seen."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.fuzz import campaigns
from tests.fuzz.seeds import mutants, seeds, words
from tests.fuzz.targets import TARGETS, Broken
from tests.long.report import Size


@pytest.mark.parametrize("target", TARGETS)
def test_mutants_of_real_files_are_refused_or_sound(target: str, tmp_path: Path) -> None:
    report = getattr(campaigns, target)(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["inputs"] == campaigns.MUTANTS


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_accepts_its_seeds_and_its_mutants_vary(target: str) -> None:
    assert len(seeds(target)) > 5
    assert words(target)
    made = list(mutants(target, 100, seed=1))
    assert len(set(made)) > 80
    with TARGETS[target]() as check:
        for data in seeds(target):
            check(data)


def test_keys_at_every_depth_are_words_of_the_settings() -> None:
    assert {b"workflows", b"review_every_n", b"max_delay_s"} <= set(words("settings"))


def test_a_door_that_accepts_too_much_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.targets.parse_answer", lambda text, _: text)
    with TARGETS["router"]() as check, pytest.raises(Broken, match="not allowed"):
        check(b"../secret.md")


def test_another_error_than_the_doors_own_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.targets.parse_answer", lambda text, _: 1 // len(text))
    report = campaigns.mutate("router", 50)
    assert any("ZeroDivisionError" in violation for violation in report.violations)


def test_without_the_fuzzer_nothing_is_tried_and_a_note_explains_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(campaigns, "find_spec", lambda _: None)
    report = campaigns.router(tmp_path, Size.LONG)
    assert (report.counts, report.violations) == ({"inputs": 0}, ())
    assert "pip install" in report.notes[0]


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs the extra 'fuzz'")
def test_the_fuzzer_runs_and_counts(tmp_path: Path) -> None:
    report = campaigns.fuzz("router", tmp_path / "fuzz", 2)
    assert report.violations == ()
    assert report.counts["inputs"] > 100
