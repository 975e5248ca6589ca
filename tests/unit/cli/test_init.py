from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path

import pytest

from sequencer.cli import init as scaffold
from sequencer.files.textfile import SCHEMA_NAME
from sequencer.project import trusting
from sequencer.project.agents import CLIENTS
from sequencer.project.project import open_project
from sequencer.project.sources import IDENTITY_VARIABLES
from tests.unit.cli.calling import call

PROJECT = Path(__file__).parents[3]
PROMPTS = ("main.md", "main2.md", "reviewer.md", "router.md", "supervisor.md", "supervisor2.md")


@pytest.fixture
def path_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the whole PATH, for programs that a test wants found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)


def test_a_link_is_preserved_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "main.md").symlink_to(tmp_path / "outside.md")
    assert "kept     prompts/main.md" in call(tmp_path, "init").out
    assert not (tmp_path / "outside.md").exists()


def test_an_unknown_example_lists_the_known_ones_and_writes_nothing(tmp_path: Path) -> None:
    called = call(tmp_path, "init", "app", "--example", "review")
    assert called.code == 2
    assert "cron, flows, procedures, review-cadence, teams, two-terminals" in called.err
    assert not (tmp_path / "app").exists()


def test_an_incomplete_init_is_undone(tmp_path: Path) -> None:
    """Half of a file would be kept by the next try, as if somebody had written it."""
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "main.md").write_text("mine")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))
    try:
        called = call(tmp_path, "init")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert called.code == 2
    assert "can't be written: File too large" in called.err
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == [
        "prompts",
        "prompts/main.md",
    ]
    assert (tmp_path / "prompts" / "main.md").read_text() == "mine"
    assert call(tmp_path, "init").code == 0
    assert "steps:" in (tmp_path / "orchestration.yaml").read_text()


def test_prompts_that_init_cannot_write_are_listed_as_missing(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text(
        "workflow: {name: nightly}\n"
        "agents: {tests: {kind: command, argv: [make, test]}}\n"
        "workflows: {nightly: {steps: [plan, {name: main}, {name: verify, agent: tests}]}}\n"
    )
    called = call(tmp_path, "init")
    assert called.code == 0, called.err
    assert "missing  prompts/plan.md" in called.out
    assert "verify" not in called.out
    assert (tmp_path / "prompts" / "main.md").exists()


def test_logs_in_the_project_folder_do_not_hide_the_project(tmp_path: Path) -> None:
    (tmp_path / "orchestration.yaml").write_text("logs_dir: .\n")
    called = call(tmp_path, "init")
    assert not (tmp_path / ".gitignore").exists()
    assert "add them to .gitignore by hand" in called.err


def test_a_folder_with_other_files_is_not_added_to_gitignore(tmp_path: Path) -> None:
    (tmp_path / "sync").mkdir()
    (tmp_path / "sync" / "notes.txt").write_text("shared")
    called = call(tmp_path, "init")
    assert not (tmp_path / "sync" / ".gitignore").exists()
    assert "has other files" in called.err


def test_agents_found_on_path_get_an_entry(tmp_path: Path, path_with: Path) -> None:
    install(path_with, "codex", "gemini")
    assert call(tmp_path, "init", "app").code == 0
    settings = open_project(tmp_path / "app").settings
    assert set(settings.agents) == {"codex", "gemini"}


def test_without_an_agent_the_file_explains_what_to_do(tmp_path: Path, path_with: Path) -> None:
    assert path_with.is_dir()
    assert call(tmp_path, "init", "app").code == 0
    text = (tmp_path / "app" / "orchestration.yaml").read_text()
    assert "install claude, codex, gemini or opencode" in text
    again = call(tmp_path, "init", "other")
    assert "found    agents: none" in again.out
    hint = "or try it without one: cd other && sequencer run --rehearse --max-steps 2"
    assert f"next: install claude, codex, gemini or opencode; {hint}" in again.err
    settings = open_project(tmp_path / "app").settings
    assert (settings.agent.default, settings.agents) == ("auto", {})


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("pyproject.toml", '[project]\ndependencies = ["pytest"]\n', "python -m pytest"),
        ("pyproject.toml", "[project]\n", ""),
        ("package.json", '{"scripts": {"test": "rm -rf /"}}', "npm test"),
        ("package.json", "{}", ""),
        ("Cargo.toml", "", "cargo test"),
        ("go.mod", "module x", "go test ./..."),
        ("Makefile", "all:\n\ntest: all\n\trm -rf /\n", "make test"),
        ("Makefile", "all:\n", ""),
        ("notes.txt", "", ""),
    ],
)
def test_the_test_command_is_detected_from_project_files(
    tmp_path: Path, path_with: Path, name: str, text: str, command: str
) -> None:
    install(path_with, "claude", "opencode")
    (tmp_path / name).write_text(text)
    assert f"tests: {command or 'none'}" in call(tmp_path, "init").out
    settings = open_project(tmp_path).settings
    tests = settings.agents.get("tests")
    assert (tests is not None) == bool(command)
    written = (tmp_path / "orchestration.yaml").read_text()
    assert "rm -rf" not in written
    assert (f"Bash({command} *)" in written) == bool(command)


def test_a_hostile_file_is_ignored_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    (tmp_path / "package.json").symlink_to("/dev/zero")
    assert "tests: none" in call(tmp_path, "init").out


def test_the_first_client_is_the_agent_and_only_its_costs_are_capped(path_with: Path) -> None:
    assert path_with.is_dir()
    claude, codex = (
        scaffold.format_configuration(["claude", "codex"]),
        scaffold.format_configuration(["codex"]),
    )
    assert "agent: claude   # installed too: codex\n" in claude
    assert "limits: {cost_usd: 50, steps: 500}" in claude
    for text in (claude, codex):
        columns = {line.index("#") for line in text.splitlines()[3:8] if " # " in line}
        assert len(columns) == 1, text
    assert "agent: codex\n" in codex
    assert "cost_usd" not in codex
    assert len(codex.splitlines()) <= 10


@pytest.mark.parametrize("name", scaffold.EXAMPLES)
def test_an_example_is_copied_whole_and_trusted(tmp_path: Path, name: str) -> None:
    called = call(tmp_path, "init", "app", "--example", name)
    assert called.code == 0, called.err
    assert "created  README.md" in called.out
    assert "missing" not in called.out
    folder = tmp_path / "app"
    # The text says what this example is about, and all that it links to is there.
    (following,) = [line for line in called.err.splitlines() if line.startswith("next: ")]
    assert following.startswith("next: cd app && sequencer ")
    commands = re.findall(r"sequencer (\w+)", following)
    readme = (folder / "README.md").read_text()
    assert all(f"sequencer {verb}" in readme for verb in commands), following
    links = re.findall(r"\]\(([^)#]+)", readme)
    assert [link for link in links if not (folder / link).exists()] == []
    assert trusting.read(open_project(tmp_path / "app").trust.key) is not None
    again = call(tmp_path, "init", "app", "--example", name)
    assert (again.code, "this folder already has a project" in again.err) == (2, True)


def test_a_prompt_that_is_preserved_is_listed_once(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "main.md").write_text("mine")
    called = call(tmp_path, "init", "--example", "two-terminals", "--json")
    assert json.loads(called.out)["kept"] == ["prompts/main.md"]


def test_an_example_among_existing_files_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise SystemExit('mine')\n")
    called = call(tmp_path, "init", "--example", "cron")
    assert "kept     agent.py" in called.out
    assert "'sequencer trust' shows it" in called.err
    assert trusting.read(open_project(tmp_path).trust.key) is None


def test_the_schema_is_written_next_to_the_configuration(tmp_path: Path) -> None:
    call(tmp_path, "init")
    (first, *_) = (tmp_path / "orchestration.yaml").read_text().splitlines()
    assert first == f"# yaml-language-server: $schema={SCHEMA_NAME}"
    printed = call(tmp_path, "check", "--schema").out
    assert (tmp_path / SCHEMA_NAME).read_text() == printed
    assert json.loads(printed)["properties"]["agent"]["anyOf"]
    assert "another release" not in call(tmp_path, "check").out
    (tmp_path / SCHEMA_NAME).write_text(printed.replace("review", "revue"))
    checked = call(tmp_path, "check")
    assert ".schema.json is from another release" in checked.out + checked.err
    # A file that came without it, and names it.
    (tmp_path / SCHEMA_NAME).unlink()
    assert f"created  {SCHEMA_NAME}" in call(tmp_path, "init").out
    (tmp_path / SCHEMA_NAME).unlink()
    (tmp_path / "orchestration.yaml").write_text("workflow: standard\n")
    assert SCHEMA_NAME not in call(tmp_path, "init").out


def test_the_prompts_are_whole_and_name_real_variables() -> None:
    texts = scaffold.prompt_texts()
    assert tuple(texts) == PROMPTS
    known = IDENTITY_VARIABLES
    for name, text in texts.items():
        variables = set(re.findall(r"SEQUENCER_[A-Z_]+", text))
        assert variables <= known, name
        assert len(text) > 500, name
        assert text.startswith("# "), name
        if name != "router.md":
            assert "SEQUENCER_RESULT" in text, name


def test_this_project_has_the_files_that_init_creates() -> None:
    texts = scaffold.prompt_texts()
    for name, text in texts.items():
        assert (PROJECT / "prompts" / name).read_text() == text, name
    wanted = scaffold.format_configuration(CLIENTS, ("python", "-m", "pytest"))
    assert (PROJECT / "orchestration.yaml").read_text() == wanted


def test_a_folder_that_can_not_be_written_to_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    tmp_path.chmod(0o500)
    called = call(tmp_path, "init", "app")
    tmp_path.chmod(0o700)
    assert called.code == 2
    assert "Permission denied" in called.err


def test_an_existing_file_that_would_be_run_is_not_trusted(tmp_path: Path) -> None:
    # `python -m pytest` would run it, and nothing that init writes is called so.
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "pytest.py").write_text("open('obeyed', 'w')\n")
    assert "'sequencer trust' shows it" in call(tmp_path, "init").err
    assert trusting.read(open_project(tmp_path).trust.key) is None


def test_prompts_are_written_into_the_project_only(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    (folder / "orchestration.yaml").write_text(
        "prompts_dir: ../outside\nsteps: [main, reviewer]\nagent: rehearsal\n"
    )
    made = call(folder, "init")
    assert made.code == 0, made.err
    assert "missing  ../outside/main.md" in made.out
    assert not (tmp_path / "outside").exists()
