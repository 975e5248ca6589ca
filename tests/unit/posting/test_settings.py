"""``activity:`` as the settings have it: complaints with file, line and key, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.documents.keys import ConfigurationErrors
from sequencer.errors import ConfigurationError
from sequencer.settings.settings import Settings, load


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
            ["activity.sinks.x.url: expected a whole http:// or https:// address"],
        ),
        (
            "{sinks: {x: {kind: github, repository: a, issue: 0}}}",
            ["activity.sinks.x.repository: ", "activity.sinks.x.issue: "],
        ),
        (
            "{sinks: {x: {kind: slack}, y: {kind: jsonl, url: 'https://a.b'}}}",
            ["activity.sinks.x.kind: should be", "activity.sinks.y: kind jsonl has no url"],
        ),
        ("{drain: 3}", ["activity: unknown key 'drain'\n  did you mean 'drain_s'?"]),
        ("{drain_s: .inf}", ["activity.drain_s: "]),
        ("{sinks: [a]}", ["activity.sinks: expected a mapping"]),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
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
