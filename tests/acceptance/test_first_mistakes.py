"""What somebody gets wrong on the first day is told before it costs anything."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sequencer import open_run
from sequencer.errors import ConfigurationError
from tests.unit.cli.calling import call, project


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("main.md", None, "step 'main': unknown prompt 'main.md'"),
        ("main.md", " \n", "step 'main': prompt 'main.md' is empty"),
        ("reviewer.md", None, "step 'reviewer': unknown prompt 'reviewer.md'"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "tick"])
def test_no_step_is_paid_for_if_another_has_no_prompt(
    tmp_path: Path, verb: str, name: str, text: str | None, said: str
) -> None:
    text_of = "agent: rehearsal\nsteps: [supervisor, main]\nreview: {every: 3, step: reviewer}\n"
    folder = project(tmp_path / "p", text_of)
    prompt = folder / "prompts" / name
    prompt.unlink() if text is None else prompt.write_text(text)
    ended = call(folder, verb)
    assert ended.code == 2
    assert said in ended.err
    assert call(folder, "status", "--json").json["run_id"] is None
    # A run that has begun may have a step that writes the prompt of another one.
    prompt.write_text("Do it.\n")
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0
    (folder / "prompts" / "reviewer.md").unlink()
    assert call(folder, "run", "--max-steps", "1", "--quiet").code == 0


@pytest.mark.parametrize("agent", ["claude", "sh", "rehearsal"])
@pytest.mark.parametrize("verb", ["run", "tick"])
def test_no_step_starts_if_the_folder_of_prompts_is_unreadable(
    tmp_path: Path, verb: str, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that needs no prompt got none, and its work was accepted."""
    text = f"agent: {agent}\nsteps: [main]\nagents: {{sh: {{kind: command, argv: [cat]}}}}\n"
    folder, iterate = project(tmp_path / "p", text), Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "prompts":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return iterate(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    ended = call(folder, verb)
    assert ended.code == 2
    assert "can't be read: Permission denied" in ended.err
    monkeypatch.undo()
    assert call(folder, "status", "--json").json["run_id"] is None


def test_a_review_that_never_comes_needs_no_prompt(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\nworkflow: review_cadence\n")
    (folder / "prompts" / "reviewer.md").unlink()
    assert call(folder, "run", "--max-steps", "1", "--review-every", "0", "--quiet").code == 0


@pytest.mark.parametrize("name", ["", " ", "x" * 101])
def test_a_blank_or_too_long_run_name_is_refused(tmp_path: Path, name: str) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    ended = call(folder, "run", "--run", name, "--max-steps", "1")
    assert ended.code == 2
    assert "1 to 100 characters" in ended.err
    assert not (folder / "sync" / "runs").exists()


def test_the_default_run_can_be_addressed_by_name(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    for _ in range(2):
        assert call(folder, "--run", "default", "run", "--max-steps", "1", "--quiet").code == 0
    assert call(folder, "status", "--json").json["step_index"] == 2
    assert not (folder / "sync" / "runs").exists()


def test_the_default_run_can_run_a_flow(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    (folder / "flows").mkdir()
    chart = "```mermaid\nflowchart TD\n  a[Do]\n```\n\n### a\nDo it.\n"
    (folder / "flows/rev.md").write_text(chart)
    for _ in range(2):
        assert call(folder, "run", "rev", "--run", "default", "--quiet").code == 0
    assert call(folder, "status", "--json").json["workflow_name"] == "rev"
    shown = call(folder, "plan", "rev", "--run", "default", "--json").json["nodes"]
    assert {node["state"] for node in shown} == {"done"}
    assert not (folder / "sync" / "runs").exists()
    refused = call(folder, "run", "rev", "--run", "default", "--new")
    assert (refused.code, "there is only one default run" in refused.err) == (2, True)


def test_a_run_name_similar_to_an_existing_one_is_noticed(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    assert "new run" not in call(folder, "--run", "release", "run", "--max-steps", "1").err
    said = call(folder, "--run", "relaese", "run", "--max-steps", "1").err
    assert "notice: 'relaese' is a new run; there is a run 'release'" in said


def test_a_configuration_with_a_yml_ending_is_reported(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    (folder / "orchestration.yaml").rename(folder / "orchestration.yml")
    ended = call(folder, "run", "--max-steps", "1")
    assert ended.code == 2
    assert "orchestration.yml: is not read" in ended.err
    assert "rename it to orchestration.yaml" in ended.err


def test_status_without_a_default_run_lists_the_others(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    for name in ("one", "two"):
        assert call(folder, "--run", name, "run", "--max-steps", "1", "--quiet").code == 0
    shown = call(folder, "status").out
    assert [name in shown for name in ("one", "two", "not started")] == [True, True, False]
    assert call(folder, "status", "--json").json["run_id"] is None


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("pause", "stop --pause"),
        ("list", "status --all"),
        ("approve", "answer"),
        ("doctor", "check"),
        ("config", "check --settings"),
        *((name, "web") for name in ("ui", "dashboard", "serve")),
        ("watch", "log -f"),
        ("graph", "plan --diagram"),
        ("new", "init"),
        ("undo", "rewind"),
    ],
)
def test_common_names_of_other_commands_get_a_hint(tmp_path: Path, typed: str, hint: str) -> None:
    ended = call(tmp_path, typed)
    assert ended.code == 2
    assert f"use 'sequencer {hint}'" in ended.err
    # What the hint names is there.
    assert call(tmp_path, *hint.split(), "--help").code == 0


def test_an_unknown_command_suggests_only_similar_names(tmp_path: Path) -> None:
    near, far = call(tmp_path, "histroy").err, call(tmp_path, "xyzzy").err
    assert near == "error: unknown command 'histroy'\n  did you mean 'history'?\n"
    assert far == "error: unknown command 'xyzzy'\n  'sequencer help all' lists them\n"


def test_a_missing_folder_is_not_taken_for_its_parent_project(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    ended = call(folder, "trust", "nodir")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: nodir: there is no such folder or workflow file\n"
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        open_run(folder / "nodir")


def test_steps_with_nothing_after_it_is_an_error(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\nsteps:\n")
    ended = call(folder, "check")
    assert ended.code == 2
    assert "orchestration.yaml:2:1: steps: expected a list" in ended.out


def test_a_command_with_a_missing_or_empty_prompt_is_a_notice(tmp_path: Path) -> None:
    folder = project(
        tmp_path / "p",
        "steps: [plan, build, empty, {name: tests, agent: make}]\nagent: sh\n"
        "agents: {sh: {kind: command, argv: [cat]}, make: {kind: command, argv: [cat]}}\n",
        "plan.md",
        "empty.md",
    )
    (folder / "prompts/empty.md").write_text("\n")
    said = call(folder, "check")
    assert said.code == 0
    nothing = "so its program gets nothing on standard input"
    notices = [line for line in said.out.splitlines() if nothing in line]
    assert notices == [
        "notice: workflow: workflow default, step 'build': it has no prompt 'build.md', " + nothing,
        "notice: workflow: workflow default, step 'empty': its prompt 'empty.md' is empty, "
        + nothing,
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("status --all --run nope", "--all lists all runs, so it and --run can't be used together"),
        ("schedule show --every 5", "--every: has no effect on 'show'"),
        ("schedule remove --every 5", "only 'install' and 'print' take it"),
        ("schedule remove --all", "--all: has no effect on 'remove'"),
        ("schedule show --env-file x", "--env-file: has no effect on 'show'"),
        ("schedule remove --web --port 1", "--port: has no effect on 'remove'"),
        ("schedule print --port 1", "--port: works only with --web"),
        ("schedule print --bind 0.0.0.0", "--bind: works only with --web"),
        ("schedule print --name x", "--name: works only with --web"),
        ("schedule print --web --every 60", "--every: works only without --web"),
        ("schedule print --web --all", "--all: works only without --web"),
        ("schedule print --web --all --at-most 2", "--all: works only without --web"),
        ("check --settings --schema", "--schema and --settings can't be used together"),
        ("check --report --settings", "--settings and --report can't be used together"),
        ("check --schema --remote", "--schema and --remote can't be used together"),
    ],
)
def test_an_option_without_an_effect_is_refused(line: str, said: str, tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    refused = call(folder, *line.split())
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err


def make_folder(path: Path) -> None:
    path.mkdir()


def make_link_out(path: Path) -> None:
    path.symlink_to("../../secret.md")


def make_latin_1(path: Path) -> None:
    path.write_bytes(b"na\xefve\n")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (make_folder, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (make_link_out, "outside the prompts folder"),
        (make_latin_1, "not UTF-8"),
    ],
)
@pytest.mark.parametrize("agent", ["", ", agent: sh"])
def test_an_unusable_prompt_of_a_command_is_an_error_of_check_and_of_run(
    tmp_path: Path, make: Callable[[Path], None], said: str, agent: str
) -> None:
    """The first step must not be paid before the second one is refused."""
    text = f"steps: [{{name: plan, agent: rehearsal}}, {{name: build{agent}}}]\nagent: sh\n"
    folder = project(
        tmp_path / "p", text + "agents: {sh: {kind: command, argv: [cat]}}\n", "plan.md"
    )
    (tmp_path / "secret.md").write_text("Do it.\n")
    make(folder / "prompts/build.md")
    checked, ended = call(folder, "check"), call(folder, "run")
    assert (checked.code, ended.code) == (2, 2)
    (line,) = [line for line in checked.out.splitlines() if "build" in line]
    assert line.startswith("error: workflow: workflow default, step 'build': ")
    assert said in line
    assert said in ended.err
    assert call(folder, "status", "--json").json["run_id"] is None


def test_start_without_a_run_names_the_command_to_continue(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    made = call(folder, "start", "Login times out", "--no-run")
    assert made.code == 0, made.err
    assert "to continue: sequencer --run login-times-out run" in made.err


def test_start_makes_no_other_run_than_the_default_run_that_was_asked_for(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    refused = call(folder, "start", "x", "--run", "default", "--no-run")
    assert refused.code == 2
    assert "--run default: the default run can't be made from a request" in refused.err
    assert not (folder / "sync").exists()


def test_a_manual_change_names_the_command_to_continue(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", "agent: rehearsal\n")
    assert call(folder, "--run", "a b", "run", "--max-steps", "1", "--quiet").code == 0
    said = call(folder, "--run", "a b", "skip")
    assert "to continue: sequencer --run 'a b' run" in said.err
    assert "to continue" not in call(folder, "--run", "a b", "stop").err


def test_a_reset_killed_before_replacing_the_state_is_completed(tmp_path: Path) -> None:
    text = "agent: rehearsal\nworkflow: w\nworkflows: {w: {kind: procedure, steps: [main]}}\n"
    folder = project(tmp_path / "p", text)
    assert call(folder, "run", "--quiet").code == 0
    state = folder / "sync" / "state.json"
    before = state.read_bytes()
    assert call(folder, "reset", "--yes", "--quiet").code == 0
    state.write_bytes(before)
    shown = call(folder, "status", "--json")
    assert (shown.code, shown.json["step_index"]) == (0, 0)
    assert call(folder, "run", "--quiet").code == 0
