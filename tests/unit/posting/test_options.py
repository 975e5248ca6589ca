from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.errors import ConfigurationError, ConfigurationErrors
from sequencer.executors.redaction import Redaction
from sequencer.frozen.fields import ValidationError
from sequencer.plugins.posting.options import KINDS, ActivityOptions, SinkOptions, SinkPlace
from sequencer.plugins.posting.sinks import MAKERS, make_sinks, problems
from sequencer.project.settings import Settings, load

HOOK = {"kind": "webhook", "url": "https://example.org/hook"}
LINEAR = {"kind": "linear", "agent_session_id": "6f1c-4a"}
GITHUB = {"kind": "github", "repository": "octo/cat", "issue": 12}
TOKENS = {"LINEAR_TOKEN": "lin-1", "GITHUB_TOKEN": "gh-1"}  # no real ones


def place(folder: Path, **environment: str) -> SinkPlace:
    return SinkPlace(folder / "sync", folder, environment)


def options(**sinks: Any) -> ActivityOptions:
    return ActivityOptions.model_validate({"sinks": sinks})


def test_each_kind_has_a_maker_and_each_field_a_kind() -> None:
    assert KINDS.keys() == MAKERS.keys()
    named = {n for kind in KINDS.values() for group in (*kind.needs, kind.may) for n in group}
    assert named == set(SinkOptions.model_fields) - {"kind"}


def test_the_sinks_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    entries = {"file": {"kind": "jsonl"}, "hook": HOOK, "linear": LINEAR, "issue": GITHUB}
    made = make_sinks(options(**entries), place(tmp_path, **TOKENS))
    assert [(sink.name, sink.kind) for sink in made] == [
        ("file", "jsonl"),
        ("hook", "webhook"),
        ("linear", "linear"),
        ("issue", "github"),
    ]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({}, "kind: has to be there"),
        (
            {"kind": "slack"},
            "unknown sink kind 'slack'; known sink kinds: github, jsonl, linear, webhook",
        ),
        ({"kind": "webhook"}, "kind webhook needs url"),
        ({"kind": "linear"}, "needs agent_session_id or agent_session_id_env"),
        ({"kind": "github", "repository": "a/b"}, "needs issue or issue_env"),
        ({"kind": "github", "issue": 1}, "needs repository"),
        ({**GITHUB, "issue_env": "N"}, "are alternatives"),
        ({"kind": "jsonl", "url": "https://x"}, "kind jsonl has no url; it has path"),
        ({**HOOK, "token_env": "A_TOKEN"}, "kind webhook has no token_env"),
        ({**HOOK, "url": "ftp://example.org"}, "full http:// or https://"),
        ({**HOOK, "url": "https://"}, "full http:// or https://"),
        ({**HOOK, "url": "https://x:y@example.org"}, "can't hold credentials"),
        (
            {**HOOK, "url": "http://example.org", "headers_env": {"A": "A_TOKEN"}},
            "must start with https",
        ),
        ({**GITHUB, "api_url": "http://example.org"}, "must start with https"),
        ({**HOOK, "url": "https://exa mple.org"}, "can't have blanks"),
        ({**HOOK, "url": "http://[::1"}, "full http:// or https://"),
        ({**HOOK, "headers": {"Authorization": "Bearer x"}}, "headers_env takes it"),
        ({**HOOK, "headers": {"X-Api-Key": "x"}}, "headers_env takes it"),
        ({**HOOK, "headers": {"Idempotency-Key": "x"}}, "set by the sink"),
        ({**HOOK, "headers": {"A": "b\r\nX: y"}}, "can't have a line break"),
        ({**HOOK, "headers": {"A b": "c"}}, "expected the name of a header"),
        ({**HOOK, "headers_env": {"Authorization": "HOOK_AUTH"}}, "must end in _TOKEN"),
        ({**HOOK, "secret_env": "s3cr3t-itself"}, "expected the name of a variable"),
        ({**GITHUB, "repository": "octo/../cat"}, "expected OWNER/NAME"),
        ({**GITHUB, "repository": "octo/.."}, "write repository as owner/name"),
        ({**GITHUB, "issue": 0}, "greater than or equal to 1"),
        ({**GITHUB, "token": "ghp_1"}, "is not known here"),
        ({**LINEAR, "agent_session_id": "a/b"}, "expected letters, digits"),
    ],
)
def test_a_wrong_entry_is_refused(entry: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        SinkOptions.model_validate(entry)


@pytest.mark.parametrize("name", ["HOOK_TOKEN", "TOKEN", "MY_API_KEY", "DB_PASSWORD", "A_SECRET"])
def test_the_value_of_any_allowed_secret_variable_is_hidden(name: str) -> None:
    SinkOptions.model_validate({**HOOK, "secret_env": name})
    assert (
        Redaction.from_environment({name: "a-long-value"}).hide_text("a-long-value") == "[secret]"
    )


@pytest.mark.parametrize(
    ("entry", "variable"),
    [(LINEAR, "LINEAR_TOKEN"), (GITHUB, "GITHUB_TOKEN"), (HOOK, "")],
)
def test_the_token_variable_has_a_default_name(entry: dict[str, Any], variable: str) -> None:
    assert SinkOptions.model_validate(entry).token_variable == variable


def test_every_variable_that_is_missing_is_found(tmp_path: Path) -> None:
    asked = options(
        hook={**HOOK, "secret_env": "S_SECRET", "headers_env": {"X-T": "T_TOKEN"}},
        linear={"kind": "linear", "agent_session_id_env": "SESSION"},
        issue={"kind": "github", "repository": "a/b", "issue_env": "ISSUE"},
    )
    found = dict(problems(asked, place(tmp_path)))
    assert found == {
        "activity.sinks.hook.secret_env": "the variable S_SECRET is not set",
        "activity.sinks.hook.headers_env.X-T": "the variable T_TOKEN is not set",
        "activity.sinks.linear.token_env": "the variable LINEAR_TOKEN is not set",
        "activity.sinks.linear.agent_session_id_env": "the variable SESSION is not set",
        "activity.sinks.issue.token_env": "the variable GITHUB_TOKEN is not set",
        "activity.sinks.issue.issue_env": "the variable ISSUE is not set",
    }
    with pytest.raises(ConfigurationError, match="S_SECRET is not set"):
        make_sinks(asked, place(tmp_path))


def test_an_invalid_variable_is_reported_without_its_value(tmp_path: Path) -> None:
    asked = options(issue={"kind": "github", "repository": "a/b", "issue_env": "ISSUE"})
    for number in ("twelve", "0", "-1", "1.5", "9" * 30, f"{1:020}{5:05000}"):
        found = dict(problems(asked, place(tmp_path, **{**TOKENS, "ISSUE": number})))
        assert list(found) == ["activity.sinks.issue.issue_env"]
    two_lines = {"GITHUB_TOKEN": "ghp_1\nX: y", "ISSUE": "3"}
    found = dict(problems(asked, place(tmp_path, **two_lines)))
    assert found == {
        "activity.sinks.issue.token_env": "the variable GITHUB_TOKEN is not one printable line"
    }


@pytest.mark.parametrize(
    "path",
    [
        "../out.jsonl",
        "/somewhere/out.jsonl",
        "link/out.jsonl",
        "sync/state.json",
        "sync/journal.jsonl",
        "a.txt",
        "x/..",
    ],
)
def test_a_file_outside_the_project_or_in_the_run_is_refused(tmp_path: Path, path: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "link").symlink_to(tmp_path)
    found = dict(problems(options(file={"kind": "jsonl", "path": path}), place(project)))
    assert list(found) == ["activity.sinks.file.path"]


@pytest.mark.parametrize("path", ["out.jsonl", "a/b/out.jsonl", "sync/runs/x/activity.jsonl"])
def test_a_file_in_the_project_is_accepted(tmp_path: Path, path: str) -> None:
    (sink,) = make_sinks(options(file={"kind": "jsonl", "path": path}), place(tmp_path))
    assert vars(sink)["path"] == tmp_path.resolve() / path


# --- ``activity:`` as the settings have it: complaints with file, line and key, all at once ---


def loaded(folder: Path, text: str, **variables: str) -> Settings:
    (folder / "orchestration.yaml").write_text(text)
    return load(folder, env=variables)


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ("{sinks: {x: {kind: webhook}}}", ["activity.sinks.x: kind webhook needs url"]),
        (
            "{sinks: {x: {kind: webhook, urll: a}}}",
            ["activity.sinks.x: unknown key 'urll'\n  did you mean 'url'?"],
        ),
        (
            "{sinks: {x: {kind: webhook, url: 'ftp://a'}}}",
            ["activity.sinks.x.url: expected a full http:// or https:// address"],
        ),
        (
            "{sinks: {x: {kind: github, repository: a, issue: 0}}}",
            ["activity.sinks.x.repository: ", "activity.sinks.x.issue: "],
        ),
        (
            "{sinks: {x: {kind: slack}, y: {kind: jsonl, url: 'https://a.b'}}}",
            ["activity.sinks.x.kind: unknown sink kind", "activity.sinks.y: kind jsonl has no url"],
        ),
        ("{drain: 3}", ["activity: unknown key 'drain'\n  did you mean 'drain_s'?"]),
        ("{drain_s: .inf}", ["activity.drain_s: "]),
        ("{sinks: [a]}", ["activity.sinks: expected a mapping"]),
    ],
)
def test_an_error_is_reported_with_its_place(
    tmp_path: Path, text: str, complaints: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        loaded(tmp_path, f"activity: {text}\n")
    error = refused.value
    errors = error.errors if isinstance(error, ConfigurationErrors) else (error,)
    assert len(errors) == len(complaints)
    for found, complaint in zip(errors, complaints, strict=True):
        assert complaint in str(found)
        assert "orchestration.yaml:1:" in str(found)
