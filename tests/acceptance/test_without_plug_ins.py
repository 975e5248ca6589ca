"""The core alone: every plug-in disabled, or not even installed; and each alone with it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from sequencer import extensions
from tests.acceptance.core_alone import FLOW, READING, ROOT, TASKS, Here, without


@pytest.fixture(params=["disabled", "not installed"])
def core(request: pytest.FixtureRequest, tmp_path: Path) -> Here:
    is_removed = request.param == "not installed"
    packages = without(tmp_path, extensions.PLUGINS if is_removed else frozenset())
    return Here(
        tmp_path / "project", packages, off=frozenset() if is_removed else extensions.PLUGINS
    )


def test_two_terminals_take_turns(core: Here) -> None:
    core.configure("steps: [supervisor, main]\nlimits: {steps: 6}\n")
    core.prompts("supervisor", "main")
    both = [core.begin("run", "--mode", "sync", "--position", n) for n in ("supervisor", "main")]
    said = [one.communicate(timeout=100)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert core.done == ["supervisor", "main"] * 3


@pytest.mark.slow(sample=1)
def test_a_review_every_second_cycle(core: Here) -> None:
    core.configure("steps: [main]\nreview: {every: 2, step: reviewer}\nlimits: {steps: 6}\n")
    core.prompts("main", "reviewer")
    core.call("run")
    assert core.done == ["main", "reviewer"] * 3


@pytest.mark.slow(sample=1)
def test_a_procedure_and_a_flow_with_a_question(core: Here) -> None:
    core.configure("workflows: {twice: {kind: procedure, steps: [a, b]}}\n")
    core.prompts("a", "b")
    core.call("run", "--workflow", "twice")
    assert core.done == ["a", "b"]
    assert core.state()["status"] == "complete"
    (core.folder / "flows").mkdir()
    (core.folder / "flows/ship.md").write_text(FLOW)
    assert "Ship it?" in core.call("--run", "one", "run", "ship", code=4)
    assert "Ship it?" in core.call("inbox")
    core.call("--run", "one", "answer", "fine", "yes")
    core.call("--run", "one", "run")
    assert core.done == ["a", "b", "build", "ship"]
    assert "complete" in core.call("--run", "one", "status")


@pytest.mark.slow(sample=1)
def test_a_kill_loses_nothing(core: Here) -> None:
    core.configure("steps: [a, b]\nlimits: {steps: 2}\n")
    core.prompts("a", "b")
    (core.folder / "prompts/a.md").write_text("wait here")
    called = core.begin_and_wait("run")
    called.send_signal(signal.SIGKILL)
    called.communicate(timeout=30)
    assert "interrupted" in core.call("status")
    (core.folder / "go").touch()
    core.call("run")
    assert core.done == ["a", "a", "b"]
    events = [json.loads(line)["event"] for line in core.call("history", "--json").splitlines()]
    assert events.count("succeeded") == 2


@pytest.mark.slow(sample=1)
def test_cron_runs_one_step_at_a_time(core: Here) -> None:
    core.configure("steps: [a, b]\nlimits: {steps: 2}\n")
    core.prompts("a", "b")
    core.call("tick"), core.call("tick"), core.call("tick")
    assert core.done == ["a", "b"]


@pytest.mark.slow(sample=1)
def test_without_plug_ins_none_of_their_parts_exist(core: Here) -> None:
    core.configure("steps: [a]\n")
    core.prompts("a")
    for command in ("start", "web", "schedule", "sync", "worker", "mcp"):
        assert "needs the plug-in" in core.call(command, code=2)
        assert f" {command}" not in core.call("--help").partition("More:")[2].replace(",", "")
    assert "--all" in core.call("tick", "--all", code=2)
    core.call("check", "--settings"), core.call("history"), core.call("repair"), core.call("clean")
    (core.folder / "tasks.yaml").write_text(TASKS)
    assert "tasks" in core.call("run", "tasks.yaml", code=2)
    for section in ("teams: {enabled: true}", "workflows: {x: {tasks: [{id: a, subject: b}]}}"):
        core.configure(f"steps: [a]\n{section}\n")
        assert "'teams'" in core.call("run", code=2)
    core.configure("steps: [a]\nstore: {kind: git, remote: origin}\n")
    assert "needs the plug-in 'git'" in core.call("tick", code=2)


PLAIN = (*READING, "check --settings", "tick", "plan", "repair", "stop", "status --all", "--help")
"""Commands that a project without any plug-in uses."""
OPTIONAL = (
    *("report", "report --html x.html", "start --help", "mcp --help", "tick --all"),
    *("plan --request fix", "schedule --help"),
)
"""Commands that need a plug-in: where it is missing, they say so."""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("plugin", sorted(extensions.PLUGINS))
def test_one_plug_in_is_missing(tmp_path: Path, plugin: str) -> None:
    """Others import it, and whatever they build on it is missing as well; nothing else is."""
    here = Here(tmp_path / "project", without(tmp_path, frozenset({plugin})))
    here.configure("steps: [a, b]\n")
    here.prompts("a", "b")
    here.call("run", "--max-steps", "1")
    for command in PLAIN:
        here.call(*command.split())
    assert here.done == ["a", "b"]
    for command in OPTIONAL:
        called = here.begin(*command.split())
        said = called.communicate(timeout=60)[0]
        assert called.returncode in (0, 2), (command, said)
        assert "this is a bug" not in said, (command, said)


@pytest.mark.slow(sample=1)
def test_a_run_is_read_without_the_kind_of_its_store(core: Here) -> None:
    core.configure("steps: [a, b]\n")
    core.prompts("a", "b")
    core.call("run", "--max-steps", "1")
    core.configure("steps: [a, b]\nstore: {kind: git, remote: origin}\n")
    for command in READING:
        said = core.call(command)
        assert "store kind 'git' needs the plug-in 'git'" in said
        assert "only a copy here can be shown" in said
    assert "next: sequencer check (store kind 'git' needs" in core.call("status")
    for command in ("run", "tick"):
        assert "store kind 'git' needs the plug-in 'git'" in core.call(command, code=2)
    assert core.done == ["a"]
    core.configure("steps: [a, b]\nstore: {kind: temporal}\nstate_file: sync/other.json\n")
    # The run is on a server, and nothing is known of it here.
    assert "store kind 'temporal' needs the plug-in 'temporal'" in core.call("status", code=2)


def test_a_variable_that_disables_a_plug_in_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "project", ROOT)
    here.configure("steps: [a]\nplugins: {web: on}\n")
    monkeypatch.setenv("SEQUENCER_PLUGINS__WEB", "off")
    assert "unset the variable SEQUENCER_PLUGINS__WEB" in here.call("web", "--help", code=2)


def test_a_run_of_tasks_is_read_without_teams(tmp_path: Path) -> None:
    here = Here(tmp_path / "project", ROOT)
    here.configure("")
    (here.folder / "tasks.yaml").write_text(TASKS)
    here.call("run", "tasks.yaml", "--max-steps", "1")
    alone = here.disabling(frozenset({"teams"}))
    alone.configure("")
    named = ("--run", "tasks")
    status = alone.call(*named, "status")
    assert "second" in status
    assert "needs the plug-in 'teams'" in status
    assert "first" in alone.call(*named, "history")
    assert "next: sequencer --run tasks check" in status
    assert "fit together" not in status
    alone.call(*named, "repair"), alone.call("clean")
    inbox = alone.call("inbox")
    assert "can't continue: " in inbox
    assert "tasks.yaml" in inbox
    # Whatever is disabled, more work can be kept from starting.
    alone.call(*named, "stop", "--reason", "no plug-in")
    assert "no plug-in" in alone.call(*named, "history")
    for command in ("run", "tick"):
        refused = alone.call(*named, command, code=2)
        assert "needs the plug-in 'teams', which is disabled" in refused
        assert "set 'plugins: {teams: on}' in orchestration.yaml" in refused
    here.configure("")
    here.call(*named, "resume")
    here.call(*named, "run")
    assert here.done == ["first", "second"]


@pytest.mark.slow
def test_disabling_what_is_not_installed_changes_nothing(tmp_path: Path) -> None:
    here = Here(tmp_path / "project", ROOT)
    here.configure("steps: [a]\nlimits: {steps: 1}\nplugins: {acme-unheard-of: off}\n")
    here.prompts("a")
    here.call("run"), here.call("status"), here.call("check")
    here.configure("steps: [a]\nplugins: {metrcs: off}\n")
    assert "did you mean 'metrics'?" in here.call("status", code=2)


def test_the_variable_for_all_plug_ins_counts_for_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "project", ROOT)
    here.configure("steps: [a]\n")
    monkeypatch.setenv("SEQUENCER_PLUGINS", "{web: off}")
    assert "needs the plug-in 'web', which is disabled" in here.call("web", code=2)


def test_a_report_with_nothing_to_show_names_the_plug_in_it_needs(core: Here) -> None:
    core.configure("steps: [a]\n")
    assert "needs the plug-in" in core.call("report", code=2)


def alone(folder: Path, plugin: str) -> Here:
    """Return a project in which only *plugin* is enabled, and that is a repository."""
    here = Here(folder / "project", ROOT, off=extensions.PLUGINS - {plugin})
    here.prompts("a")
    git = ["git", "-C", str(here.folder)]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (here.folder / ".gitignore").write_text("/sync/\n/logs/\n")
    return here


def commit(here: Here) -> None:
    git = ["git", "-C", str(here.folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)


def test_drawing_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "drawing")
    here.configure("")
    (here.folder / "ship.md").write_text(FLOW)
    assert "flowchart" in here.call("plan", "ship.md", "--mermaid")


def test_git_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "git")
    here.configure("workflows: {one: {kind: procedure, steps: [a]}}\nworktree: true\n")
    commit(here)
    assert "merged" in here.call("run", "--workflow", "one")
    assert here.done == ["a"]


def test_metrics_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "metrics")
    here.configure("steps: [a]\nlimits: {steps: 1}\n")
    here.call("run")
    assert "sequencer_" in here.call("report", "--metrics")


def test_posting_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "posting")
    here.configure("steps: [a]\nlimits: {steps: 1}\nactivity: {sinks: {here: {kind: jsonl}}}\n")
    here.call("run")
    assert (here.folder / "sync/activity.jsonl").read_text().count("\n")


def test_requests_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "requests")
    here.configure("")
    assert "full-development" in here.call("plan", "--request", "Add a page")
    assert "a team needs the plug-in 'teams'" in here.call("start", "Add a page", "--team", code=2)


def test_schedules_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "schedules")
    here.configure("steps: [a]\nlimits: {steps: 1}\n")
    here.call("run", "--max-steps", "1")
    here.call("tick", "--all")
    assert here.done == ["a"]


def test_teams_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "teams")
    here.configure("")
    (here.folder / "tasks.yaml").write_text(TASKS)
    here.call("run", "tasks.yaml")
    assert here.done == ["first", "second"]


def test_temporal_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "temporal")
    here.configure("steps: [a]\nstore: {kind: temporal, address: 127.0.0.1:1}\n")
    assert "the Temporal server does not answer" in here.call("status", code=3)


def test_web_alone(tmp_path: Path) -> None:
    here = alone(tmp_path, "web")
    here.configure("steps: [a]\nlimits: {steps: 1}\n")
    here.call("run")
    here.call("report", "--html", "page.html")
    assert "<html" in (here.folder / "page.html").read_text()


@pytest.mark.slow
def test_a_run_started_in_a_worktree_continues_nowhere_else(tmp_path: Path) -> None:
    here = alone(tmp_path, "git")
    here.prompts("b")
    here.configure("workflows: {one: {kind: procedure, steps: [a, b]}}\nworktree: true\n")
    commit(here)
    here.call("run", "--workflow", "one", "--max-steps", "1")
    for off in (frozenset[str](), frozenset({"git"})):
        other = here.disabling(off)
        other.configure("workflows: {one: {kind: procedure, steps: [a, b]}}\n")
        for command in ("run", "tick"):
            assert "the run was started in a worktree" in other.call(command, code=2)
        assert "the run was started in a worktree" in other.call("status")
    here.configure("workflows: {one: {kind: procedure, steps: [a, b]}}\nworktree: true\n")
    here.call("run")
    assert here.done == ["a", "b"]


@pytest.mark.slow(sample=1)
def test_a_plug_in_key_does_not_prevent_reading_runs(core: Here) -> None:
    core.configure("steps: [a]\n")
    core.prompts("a")
    core.call("run", "--max-steps", "1")
    core.configure("steps: [a]\nteams: {enabled: true}\nworkflows: {x: {tasks: [{id: a}]}}\n")
    for command in ("status", "history", "repair", "inbox", "clean", "log"):
        assert "no effect here" in core.call(command)
    for command in ("run", "tick", "check"):
        assert "'teams'" in core.call(command, code=2)


def test_check_reports_what_a_worktree_lacks(core: Here) -> None:
    core.configure("steps: [a]\nworktree: true\n")
    core.prompts("a")
    said = core.call("check", code=2)
    assert "a worktree needs the plug-in 'git'" in said
    assert "errors: " in said


def test_a_variable_switches_as_the_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Here(tmp_path / "project", ROOT, off=frozenset({"web"}))
    here.configure("steps: [a]\n")
    monkeypatch.setenv("SEQUENCER_PLUGINS__SCHEDULES", "off")
    monkeypatch.setenv("SEQUENCER_PLUGINS__WEB", "on")
    assert "needs the plug-in 'schedules'" in here.call("schedule", "--help", code=2)
    here.call("web", "--help")


@pytest.mark.parametrize("word", ["off", "no", "n", "false", "0"])
def test_a_word_that_means_off(tmp_path: Path, word: str) -> None:
    here = Here(tmp_path / "project", ROOT)
    here.configure(f"steps: [a]\nplugins: {{metrics: {word}}}\n")
    assert "needs the plug-in 'metrics'" in here.call("report", "--metrics", code=2)
