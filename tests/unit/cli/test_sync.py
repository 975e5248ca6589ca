from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clones import Shared, git
from tests.unit.cli.calling import CONFIGURATION as ALONE
from tests.unit.cli.calling import project
from tests.unit.cli.sharing import call, diverged, shared_project, steps


@pytest.fixture(scope="module")
def at_rest(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """A project with two clones, to be copied: that is cheaper than git."""
    made = shared_project(tmp_path_factory.mktemp("clones") / "shared")
    made.clone("a"), made.clone("b")
    return made


@pytest.fixture
def shared(tmp_path: Path, at_rest: Shared) -> Shared:
    return Shared(tmp_path / "shared", at_rest)


def row(text: str, label: str) -> list[str]:
    """Return the words of the line of *text* that begins with *label*."""
    found = [line for line in text.splitlines() if line.startswith(label)]
    assert len(found) == 1, text
    return found[0].removeprefix(label).split()


@pytest.mark.slow
def test_json_has_the_facts_of_a_fetch(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    steps(a, 1)
    called = call(b, "sync", "--fetch", "--json")
    assert called.code == 0, called.err
    facts = called.json
    assert facts["relation"] == "new"
    assert facts["here"] is facts["known"] is facts["problem"] is facts["set_aside"] is None
    assert facts["branch"]["step_index"] == 1
    assert facts["remote"] == {
        "name": "origin",
        "url": str(shared.bare),
        "branch": "sequencer/default",
        "asked": True,
        "reachable": True,
        "tip": shared.tip(),
    }
    assert facts["next"]["step"] == "main"
    again = call(b, "sync", "--fetch", "--json").json
    assert again["relation"] == "equal"
    assert again["known"]["tip"] == shared.tip()


def test_a_run_that_has_not_started_is_reported(shared: Shared) -> None:
    called = call(shared.clone("a"), "sync", "--fetch")
    assert called.code == 0, called.err
    assert "has not started" in called.out
    assert "'sequencer run' starts it here" in called.out


def test_an_unreachable_remote_is_reported_with_the_last_known_state(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    shared.bare.rename(shared.folder / "away.git")
    called = call(a, "sync", "--fetch")
    assert called.code == 3
    assert row(called.out, "this clone")[:2] == ["3", "1"]
    assert row(called.out, "origin ")[:3] == ["?", "?", "?"]
    assert "can't be reached" in called.err
    facts = call(a, "sync", "--fetch", "--json").json
    assert facts["remote"]["reachable"] is False
    assert facts["relation"] == "unknown"
    assert facts["here"]["step_index"] == 1


@pytest.mark.slow
def test_a_branch_that_was_reset_is_reported_with_a_way_to_fix_it(shared: Shared) -> None:
    a, _ = diverged(shared)
    called = call(a, "sync", "--fetch")
    assert called.code == 3
    assert row(called.out, "this clone")[1] == "3"
    assert row(called.out, "origin")[1] == "2"
    assert "does not continue" in called.err
    assert "sequencer sync --take-theirs" in called.err
    taken = call(a, "sync", "--fetch", "--take-theirs")
    assert taken.code == 0, taken.err
    (aside,) = (a / "sync").glob("set-aside-*")
    assert str(aside.relative_to(a)) in taken.err
    assert call(a, "sync", "--fetch").code == 0
    steps(a, 1)


@pytest.mark.slow
def test_the_command_to_push_the_local_state_is_shown(shared: Shared) -> None:
    a, b = diverged(shared)
    told = call(a, "sync", "--fetch").out
    (command,) = re.findall(r"^or +'(git push .*)' discards", told, re.MULTILINE)
    git(a, *command.split()[1:])
    assert call(a, "sync", "--fetch", "--json").json["branch"]["step_index"] == 3
    steps(a, 1)
    assert call(b, "sync", "--fetch", "--json").json["relation"] == "diverged"


def test_damaged_files_are_reported_with_a_way_to_fix_them(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    (a / "sync" / "state.json").write_text('{"revision": "no number"}')
    called = call(a, "sync", "--fetch")
    assert called.code == 3
    assert "sequencer sync --take-theirs" in called.out
    assert call(a, "sync", "--fetch", "--take-theirs").code == 0


def test_take_theirs_is_refused_when_nothing_diverged(shared: Shared) -> None:
    a = shared.clone("a")
    steps(a, 1)
    called = call(a, "sync", "--fetch", "--take-theirs")
    assert (called.code, called.out) == (2, "")
    assert list((a / "sync").glob("set-aside-*")) == []


def test_a_run_in_a_file_store_cannot_be_fetched(tmp_path: Path) -> None:
    called = call(project(tmp_path), "sync", "--fetch")
    assert called.code == 2
    assert "store: {kind: git}" in called.err
    (tmp_path / "orchestration.yaml").write_text(ALONE + "store: {kind: file}\n")
    assert "orchestration.yaml:3: store.kind" in call(tmp_path, "sync", "--fetch").err


# --- named runs ------------------------------------------------------------------------


def test_runs_that_only_the_remote_has_are_listed(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    steps(a, 1)
    steps(a, 1, "--run", "Big Run")
    listed = call(b, "sync", "--fetch")
    assert "'sequencer --run' 'Big Run'" not in listed.out
    assert "sequencer --run 'Big Run' sync --fetch" in listed.out
    (found,) = call(b, "sync", "--fetch", "--json").json["elsewhere"]
    assert (found["run"], found["step_index"]) == ("Big Run", 1)
    assert found["branch"].startswith("sequencer/big-run-")
    assert call(b, "--run", "Big Run", "status").code == 2, "it is not here yet"
    assert call(b, "--run", "Big Run", "sync", "--fetch", "--json").json["relation"] == "new"
    assert call(b, "--run", "Big Run", "status").code == 0
    assert call(b, "sync", "--fetch", "--json").json["elsewhere"] == []


def test_a_misspelled_run_name_gets_a_suggestion(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    steps(a, 1, "--run", "nightly")
    called = call(b, "--run", "nightyl", "sync", "--fetch")
    assert called.code == 2
    assert "did you mean 'nightly'?" in called.err
    assert not (b / "sync").exists()


# --- who works, and on what code -------------------------------------------------------


@pytest.mark.slow
def test_sync_shows_how_far_the_code_is_from_the_state(shared: Shared) -> None:
    a, b = shared.clone("a"), shared.clone("b")
    steps(a, 1)
    (a / "more.txt").write_text("more\n")
    git(a, "add", ".")
    git(a, "commit", "-q", "-m", "more")
    steps(a, 1)
    work = call(a, "sync", "--fetch", "--json").json["work"]
    assert (work["branch"], work["commit"]) == ("main", git(a, "rev-parse", "HEAD"))
    assert (work["ahead"], work["behind"]) == (0, 0)
    assert "same code as the state" in call(a, "sync", "--fetch").out
    git(b, "fetch", "-q")
    there = call(b, "sync", "--fetch", "--json").json["work"]
    assert (there["ahead"], there["behind"]) == (0, 1)


def test_without_a_work_branch_the_code_is_not_mentioned(tmp_path: Path) -> None:
    shared = shared_project(
        tmp_path,
        "agent: {default: rehearsal}\nstore: {kind: git, work: {branch: none}}\n",
    )
    a = shared.clone("a")
    steps(a, 1)
    assert call(a, "sync", "--fetch", "--json").json["work"] is None
    assert "code " not in call(a, "sync", "--fetch").out


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    "address", ["http://me:hunter22@127.0.0.1:9/x", "http://t0ken-x@127.0.0.1:9/x"]
)
def test_passwords_in_remote_urls_are_hidden(shared: Shared, address: str) -> None:
    a = shared.clone("a")
    steps(a, 1)
    git(a, "remote", "set-url", "origin", address)
    called = call(a, "sync", "--fetch")
    assert called.code == 3
    assert "http://127.0.0.1:9/x" in called.out
    for told in (called.out, called.err, call(a, "sync", "--fetch", "--json").out):
        assert "hunter22" not in told
        assert "t0ken-x" not in told
