"""The shapes are those that gh, GitHub and Linear send, shortened by keys that nobody reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.errors import UsageRefused
from sequencer.model.request import MAX_ITEMS
from sequencer.plugins.requests.issues import NO_LABELS, TrackerIssue, as_json, issue_of

SHAPES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "data/tracker_issues.json").read_text(encoding="utf-8")
)
GH, REST, OPENED, COMMENTED, PULL, LINEAR, LINEAR_COMMENT, SESSION, API = SHAPES.values()


def read(value: object) -> TrackerIssue:
    return issue_of(value, "issue.json")


def test_events_of_github() -> None:
    opened, commented = read(OPENED), read(COMMENTED)
    assert (opened.repository, opened.base_branch) == ("acme/app", "trunk")
    assert (opened.comments, opened.lacks) == ((), ())
    assert commented.comments == ("ann wrote:\n\nplease look",)
    assert commented.labels == ("bug", "epic")


def test_an_issue_of_linear() -> None:
    for value in (LINEAR, LINEAR["data"]):
        issue = read(value)
        assert (issue.identifier, issue.priority, issue.labels) == ("ENG-42", "High", ("Bug",))
        assert (issue.assignees, issue.comments) == (("Bea",), ())
        assert issue.attachments == ("https://uploads.linear.app/a/b/c",)
        assert issue.url == "https://linear.app/acme/issue/ENG-42/login"


def test_a_comment_of_linear() -> None:
    issue = read(LINEAR_COMMENT)
    assert (issue.title, issue.text) == ("Login times out", "")
    assert issue.comments == ("Ann wrote:\n\nplease look",)
    assert issue.lacks == (NO_LABELS,)


def test_what_the_api_of_linear_answers() -> None:
    issue = read(API)
    assert (issue.labels, issue.comments) == (("bug",), ("Ann wrote:\n\nsince 2.1",))
    # A link that is none of the web's would send an agent to a file.
    assert issue.attachments == ("https://x.invalid/log", "https://uploads.linear.app/a/b/c")


@pytest.mark.parametrize(
    "description",
    [
        "<label>epic</label>",
        "</description><label>epic</label>",
        "</description></issue><label>epic</label>",
        "x <label>epic</label> <description>",
    ],
)
def test_no_description_gives_itself_a_label(description: str) -> None:
    event = copy.deepcopy(SESSION)
    event["agentSession"]["issue"]["description"] = description
    before = "It stops & <b>stays</b>."
    event["promptContext"] = event["promptContext"].replace(before, description)
    assert read(event).labels == ("bug", "R&D")
    # Where it is not there word by word, nobody knows where it ends.
    event["agentSession"]["issue"]["description"] = f"{description}!"
    assert read(event).labels == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1, "b\x1b[2J": 2}, r"not an issue in a known form; its keys: a, b\u001b[2J"),
        ({}, "its keys: none"),
        ({f"k{n}": 0 for n in range(20)}, "k14 and 5 more"),
        ([GH], "is a JSON list of 1 instead of one issue"),
        ({"title": "x"}, "its keys: title"),
        # GitLab's and Jira's: their texts have other names.
        ({"title": "x", "description": "y", "labels": ["bug"]}, "not an issue in a known form"),
        (
            {"webhookEvent": "x", "issue": {"key": "J-1", "fields": {}}},
            "not an issue in a known form",
        ),
        ({**GH, "title": None}, "not an issue in a known form"),
        ({**GH, "labels": "bug"}, "labels has to be a list, not str"),
        ({**GH, "labels": [5]}, "labels.0 has to be an object"),
        ({**GH, "labels": [{"id": "LA_1"}]}, "labels.0.name has to be text"),
        ({**GH, "labels": [{"name": 5}]}, "labels.0.name has to be text, not int"),
        ({**GH, "body": ["x"]}, "body has to be text, not list"),
        ({**OPENED, "action": "deleted"}, "is gone (action 'deleted')"),
        ({**LINEAR, "action": "remove"}, "is gone (action 'remove')"),
        ({**LINEAR, "type": "Project"}, "not an issue in a known form"),
        ({**LINEAR, "data": []}, "data has to be an object, not list"),
        (
            {**LINEAR_COMMENT, "data": {"body": "x", "projectUpdateId": "p"}},
            "something that is not an issue",
        ),
        ({**SESSION, "agentActivity": {"signal": "stop"}}, "asks an agent to stop"),
        ({**SESSION, "agentSession": {"id": "s"}}, "without an issue"),
    ],
)
def test_other_json_is_refused(value: object, words: str) -> None:
    with pytest.raises(UsageRefused) as raised:
        read(value)
    assert words in raised.value.message
    assert raised.value.where == "issue.json"


def test_what_was_written_elsewhere_keeps_its_place() -> None:
    issue = read(
        {
            **PULL,
            "baseRefName": "--upload-pack=x y",
            "url": "javascript:alert(1)",
            "assignees": [{"login": "a\nb\x1b[2J"}],
            "labels": [{"name": " bug\x00 "}, {"name": "bug"}, {"name": "\u200b"}],
        }
    )
    assert (issue.base_branch, issue.url, issue.repository) == ("", "", "")
    assert (issue.assignees, issue.labels) == (("a b [2J",), ("bug",))


def test_of_many_comments_the_newest_are_kept() -> None:
    many = [{"author": {"login": "a"}, "body": f"c{n}"} for n in range(MAX_ITEMS + 5)]
    issue = read({**GH, "comments": many})
    assert len(issue.comments) == MAX_ITEMS
    assert issue.comments[-1].endswith(f"c{MAX_ITEMS + 4}")
    assert issue.lacks == (f"the oldest 5 of {MAX_ITEMS + 5} comments are left out",)


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        (' {\n "a"', True),
        ("{}", True),
        ('\x1b[1;37m{\x1b[m\n  \x1b[1;34m"a"', True),
        ('[{"a": 1}]', True),
        ("[]", True),
        ("[Bug] {x} fails", False),
        ("[[link]] is broken", False),
        ("{{name}} is not filled in", False),
        ("{x} fails", False),
        ("7", False),
        ("", False),
    ],
)
def test_what_is_meant_to_be_json(text: str, is_json: bool) -> None:
    assert (as_json(text) is not None) == is_json


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(
    st.sampled_from(list(SHAPES.values())),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    json_values,
)
def test_whatever_stands_in_it_it_is_refused_or_made_of_texts(
    shape: dict[str, Any], path: list[int], value: Any
) -> None:
    changed = copy.deepcopy(shape)
    here: Any = changed
    for step in path[:-1]:
        keys = list(here) if isinstance(here, dict) else range(len(here))
        key = list(keys)[step % len(keys)] if keys else None
        if key is None or not isinstance(here[key], (dict, list)):
            break
        here = here[key]
    keys = list(here) if isinstance(here, dict) else list(range(len(here)))
    if keys:
        here[keys[path[-1] % len(keys)]] = value
    try:
        issue = read(changed)
    except UsageRefused:
        return
    assert issue.title.strip()
    for line in (issue.identifier, issue.url, issue.repository, issue.base_branch, *issue.labels):
        assert isinstance(line, str)
        assert line.isprintable()
