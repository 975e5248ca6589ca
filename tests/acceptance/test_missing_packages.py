"""Runs are read, and most are stopped, without the packages that their settings name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.acceptance.core_alone import READING, ROOT, Here, install, without

PACKAGE = """\
class Loud:
    def __init__(self, *_):
        self.lane = "loud"

    def post(self, *_):
        pass

    def close(self):
        pass


def loud(name, options, place):
    return Loud()


def where():
    pass
"""
POINTS = "[sequencer.sinks]\nloud = loud:loud\n[sequencer.commands]\nwhere = loud:where\n"


@pytest.mark.slow
def test_a_run_is_read_without_a_package_that_its_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "packages", "acme-loud", POINTS, loud=PACKAGE)
    here = Here(tmp_path / "project", ROOT, tmp_path / "packages")
    settings = "steps: [a, b]\nactivity: {sinks: {loud: {kind: loud}}}\n"
    here.configure(settings)
    here.prompts("a", "b")
    here.configure(f"{settings}plugins: {{acme-loud: off}}\n")
    for command in (*READING, "stop", "resume"):
        here.call(command)
    needs = "needs the package 'acme-loud', which is disabled"
    for command in ("run", "tick"):
        said = here.call(command, code=2)
        assert needs in said
        assert "set 'plugins: {acme-loud: on}' in orchestration.yaml" in said
    assert needs in here.call("where", code=2)
    # A shell can't export a variable with a hyphen, and indexes make no difference.
    here.configure(f"{settings}plugins: {{acme-loud: on}}\n")
    monkeypatch.setenv("SEQUENCER_PLUGINS__ACME_LOUD", "off")
    said = here.call("run", code=2)
    assert needs in said
    assert "unset the variable SEQUENCER_PLUGINS__ACME_LOUD" in said
    monkeypatch.delenv("SEQUENCER_PLUGINS__ACME_LOUD")
    here.configure("steps: [a, b]\nstore: {kind: loudly}\nplugins: {acme-loud: off}\n")
    said = here.call("status")
    assert "unknown store kind 'loudly'" in said
    assert "only a copy here can be shown" in said
    assert "unknown store kind 'loudly'" in here.call("run", code=2)
    here.configure("steps: [a]\nstore: {kind: fil}\n")
    assert "did you mean 'file'?" in here.call("status", code=2)


INLINE = """\
workflow: t
workflows: {t: {tasks: [{id: first, subject: A, text: Do it}, {id: second, subject: B, text: Go}]}}
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("lacks", ["disabled", "not installed"])
def test_a_run_of_inline_tasks_is_read_and_stopped_without_teams(
    tmp_path: Path, lacks: str
) -> None:
    here = Here(tmp_path / "project", ROOT)
    here.configure(INLINE)
    here.call("run", "--max-steps", "1")
    teams = frozenset({"teams"})
    alone = here.disabling(teams)
    if lacks == "not installed":
        alone = Here(here.folder, without(tmp_path, teams))
    alone.configure(INLINE)
    for command in (*READING, "stop"):
        said = alone.call(command)
        assert f"needs the plug-in 'teams', which is {lacks}" in said
    for command in ("run", "tick"):
        said = alone.call(command, code=2)
        assert f"needs the plug-in 'teams', which is {lacks}" in said
        assert "unknown workflow" not in said
    here.configure(INLINE)
    here.call("resume")
    here.call("run")
    assert sorted(here.done) == ["first", "second"]


PARTS = """\
from sequencer.model.sequence.sequence_kind import SequenceKind
from sequencer.project.schema import Section
from sequencer.project.sections import ConfigSection
from sequencer.project.store_kinds import StoreKind
from sequencer.store.file import FileStore


class Owner(Section):
    name: str = "nobody"


class Sink:
    kind, max_chars, takes_thoughts = "loud", 1000, False

    def __init__(self, name, *_):
        self.name = name

    def post(self, post):
        pass

    def close(self):
        pass


owner = ConfigSection(Owner, Owner)
kept = StoreKind("kept", lambda asked: FileStore(asked.state_path, migrate=asked.to_head))
kind = SequenceKind
"""
PARTS_AT = """\
[sequencer.sections]
owner = parts:owner
[sequencer.stores]
kept = parts:kept
[sequencer.sinks]
loud = parts:Sink
[sequencer.kinds]
odd = parts:kind
"""
STEPS = "workflow: own\nworkflows: {own: {steps: [a, b]}}\n"


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("lacks", ["disabled", "not installed"])
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (f"{STEPS}owner: {{name: Ann}}\n", "owner"),
        (f"{STEPS}store: {{kind: kept}}\n", "kept"),
        (f"{STEPS}activity: {{sinks: {{mine: {{kind: loud}}}}}}\n", "loud"),
        (STEPS.replace("{steps", "{kind: odd, steps"), "odd"),
        (f"{STEPS}plugins: {{acme-parts: on}}\n", "acme-parts"),
    ],
)
def test_a_run_can_be_read_without_the_parts_its_package_added(
    tmp_path: Path, settings: str, named: str, lacks: str
) -> None:
    about = install(tmp_path / "packages", "acme-parts", PARTS_AT, parts=PARTS)
    here = Here(tmp_path / "project", ROOT, tmp_path / "packages")
    here.configure(settings)
    here.prompts("a", "b")
    here.call("run", "--max-steps", "1")
    if lacks == "not installed":
        shutil.move(about, tmp_path)
    elif "plugins" in settings:
        settings = settings.replace(" on}", " off}")
    else:
        settings += "plugins: {acme-parts: off}\n"
    here.configure(settings)
    if named == "kept":
        # A copy that nobody reads must not be stopped in place of the run.
        assert "store kind 'kept'" in here.call("stop", code=2)
    else:
        assert "the run is stopped" in here.call("stop")
        assert "stopped" in here.call("status")
        here.call("repair")
    for command in READING:
        said = here.call(command)
        if lacks == "disabled" and named != "acme-parts":
            assert "needs the package 'acme-parts', which is disabled" in said
    is_harmless = lacks == "disabled" and named == "acme-parts"
    for command in ("run", "tick") if not is_harmless else ():
        said = here.call(command, code=2)
        assert named in said
    assert here.done == ["a"]
