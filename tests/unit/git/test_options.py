"""What ``commit`` and ``store.work`` take, and what they refuse."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sequencer.settings.schema import PLACEHOLDERS, CommitOptions, WorkOptions


def test_each_key_opens() -> None:
    assert CommitOptions(paths=("x",)).is_open
    assert CommitOptions(report_extensions=(".md",)).is_open
    assert CommitOptions(tracked_output_extensions=(".npy",)).is_open


@pytest.mark.parametrize("pattern", ["../x", "a/../b", "", "/", "a\0b", "//"])
def test_patterns_stay_in_the_repository(pattern: str) -> None:
    for key in ("paths", "doc_whitelist", "report_path_globs", "tracked_output_globs", "exclude"):
        with pytest.raises(ValidationError):
            CommitOptions.model_validate({key: [pattern]})
    with pytest.raises(ValidationError):
        WorkOptions.model_validate({"tolerated": [pattern]})


@pytest.mark.parametrize("name", ["main", "feature/x", "current", "none", "v1.2", "ä", "a@b"])
def test_names_of_branches(name: str) -> None:
    assert WorkOptions(branch=name).branch == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "-x", "a b", "a..b", "a//b", "/a", "a/", "a.lock", "a.lock/b", ".a", "a/.b", "a."),
        *("a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "a@{1}", "@", "a\nb", "a\x7f"),
    ],
)
def test_what_git_takes_for_no_branch(name: str) -> None:
    with pytest.raises(ValidationError):
        WorkOptions(branch=name)


def test_a_message_has_known_words_only() -> None:
    every = " ".join(f"{{{word}}}" for word in PLACEHOLDERS)
    facts = {word: f"<{word}>" for word in PLACEHOLDERS}
    told = CommitOptions(message=every).first_line(facts)
    assert told == " ".join(f"<{word}>" for word in PLACEHOLDERS)
    with pytest.raises(ValidationError, match="means nothing here"):
        CommitOptions(message="{who}")
    with pytest.raises(ValidationError):
        CommitOptions(message="two\nlines")


def test_what_is_put_in_is_not_looked_through_again() -> None:
    told = CommitOptions(message="{step} {run}").first_line({"step": "{run}", "run": "r"})
    assert told == "{run} r"
