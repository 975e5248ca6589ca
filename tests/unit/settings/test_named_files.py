"""Which files of a project a command line names, in whole arguments and within one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sequencer.errors import NotTrusted
from sequencer.project.named_files import (
    MAX_WORDS,
    find_module_paths,
    find_possible_paths,
    list_uncompared_files,
)
from sequencer.project.project import open_project
from sequencer.project.trust import list_acts


@pytest.mark.parametrize(
    "argv",
    [
        ["sh", "agent.sh"],
        ["sh", "-c", "sh agent.sh x"],
        ["sh", "-c", ". ./agent.sh"],
        ["sh", "-c", "cd . && exec sh 'agent.sh'"],
        ["sh", "-c", "true;./agent.sh;true"],
        ["sh", "-c", "sh <agent.sh"],
        ["sh", "-c", "eval $(cat agent.sh)"],
        ["sh", "-c", 'sh "$PWD"/agent.sh'],
        ["sh", "-c", "sh ${PWD}/agent.sh"],
        ["sh", "-c", "ENV=agent.sh sh"],
        ["sh", "-c", "sh ag\\ent.sh"],
        ["sh", "-c", "sh 'agent.sh"],
        ["sh", "-c", "bash -c \"sh -c 'sh agent.sh'\""],
        ["env", "-S", "sh agent.sh"],
        ["env", "-Ssh agent.sh"],
        ["env", "--split-string=sh agent.sh"],
        ["sh", "-c", "cd sub; sh inner.sh"],
        ["python3", "-c", "import helper"],
        ["python3", "-c", "import os, helper; helper.main()"],
        ["python3", "-c", "from helper import x"],
        ["python3", "-c", "from pkg import deep"],
        ["python3", "-c", "import pkg.deep as d"],
        ["python3", "-m", "pkg"],
        ["python3", "-mhelper"],
        ["sh", "-c", "python3 -m pkg.deep"],
        ["python3", "-c", "exec(open('agent.sh').read())"],
    ],
    ids=" ".join,
)
def test_a_file_named_in_an_argument_counts_like_a_whole_argument(
    argv: list[str], tmp_path: Path
) -> None:
    files = ("agent.sh", "helper.py", "sub/inner.sh", "pkg/deep.py", "pkg/__main__.py")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one = 1\n")
    entry = {"agents": {"a": {"kind": "command", "argv": argv}}}
    before = list_acts(entry, tmp_path)
    for name in files:
        (tmp_path / name).write_text("two = 2\n")
    assert list_acts(entry, tmp_path).diff_from(before)


@pytest.mark.parametrize(
    "text",
    [
        "head -n 1 >> notes.md",
        "date >notes.md",
        "make test > notes.md 2>&1",
        "make test 2>notes.md",
        "make test &> 'notes.md'",
        'make test >| "notes.md"',
        "make test 2>&1 | tee notes.md",
        "make test | tee -a notes.md && true",
        "sh -c 'date >> notes.md'",
    ],
)
def test_a_file_that_a_shell_only_writes_may_change_with_each_step(
    text: str, tmp_path: Path
) -> None:
    entry = {"agents": {"a": {"kind": "command", "argv": ["sh", "-c", text]}}}
    before = list_acts(entry, tmp_path)
    (tmp_path / "notes.md").write_text("one\n")
    assert not list_acts(entry, tmp_path).diff_from(before)


def test_an_empty_marker_file_raises_no_question_until_it_has_content(
    tmp_path: Path,
) -> None:
    text = "test -e done.txt || { touch done.txt; exit 1; }"
    entry = {"agents": {"a": {"kind": "command", "argv": ["sh"], "env": {"CHECK": text}}}}
    before = list_acts(entry, tmp_path)
    (tmp_path / "done.txt").touch()
    assert not list_acts(entry, tmp_path).diff_from(before)
    (tmp_path / "done.txt").write_text("true\n")
    full = list_acts(entry, tmp_path)
    assert full.diff_from(before)
    (tmp_path / "done.txt").write_text("")
    assert list_acts(entry, tmp_path).diff_from(full)


@pytest.mark.parametrize(
    "text",
    [
        "cat part >> agent.sh; sh agent.sh",
        "date > agent.sh && . ./agent.sh",
        "true | tee agent.sh; ./agent.sh",
        "date > $(sh agent.sh)",
        'date > "$(sh agent.sh)"',
        'date > "`sh agent.sh`"',
        "date > >(sh agent.sh)",
        "sh <> agent.sh",
        "node -e 'x => require(\"./agent.sh\")'",
        "node -e 'x=>./agent.sh'",
    ],
)
def test_a_file_that_a_shell_writes_and_runs_counts(text: str, tmp_path: Path) -> None:
    entry = {"agents": {"a": {"kind": "command", "argv": ["sh", "-c", text]}}}
    (tmp_path / "agent.sh").write_text("one\n")
    before = list_acts(entry, tmp_path)
    (tmp_path / "agent.sh").write_text("two\n")
    assert list_acts(entry, tmp_path).diff_from(before)


def test_project_files_a_module_imports_count_as_for_hooks(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text("from . import inner\n")
    (tmp_path / "pkg" / "inner.py").write_text("one = 1\n")
    entry = {"agents": {"a": {"kind": "command", "argv": ["python3", "-m", "pkg"]}}}
    before = list_acts(entry, tmp_path)
    (tmp_path / "pkg" / "inner.py").write_text("two = 2\n")
    (line, _) = list_acts(entry, tmp_path).diff_from(before)
    assert line.startswith("- agents.a, file pkg/inner.py")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("env", {"BASH_ENV": "agent.sh"}),
        ("env", {"LD_PRELOAD": "./x.so:./agent.sh"}),
        ("program", "./agent.sh"),
        ("extra_args", ["--settings=agent.sh"]),
        ("extra_args", ["--mcp-config", "agent.sh"]),
    ],
)
def test_files_named_in_other_options_of_an_agent_count_too(
    option: str, value: object, tmp_path: Path
) -> None:
    (tmp_path / "agent.sh").write_text("one")
    entry = {"agents": {"a": {"kind": "claude", option: value}}}
    before = list_acts(entry, tmp_path)
    (tmp_path / "agent.sh").write_text("two")
    assert list_acts(entry, tmp_path).diff_from(before)


def test_files_named_in_setup_count_too(tmp_path: Path) -> None:
    (tmp_path / "tools.sh").write_text("one")
    for setup in (["sh -c 'sh tools.sh'"], [["sh", "-c", "sh tools.sh"]]):
        (tmp_path / "tools.sh").write_text("one")
        before = list_acts({"setup": setup}, tmp_path)
        (tmp_path / "tools.sh").write_text("two")
        assert list_acts({"setup": setup}, tmp_path).diff_from(before)


@pytest.mark.slow(sample=1)
@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["'" * 100_000, "a " * 100_000, "(" * 100_000, "$(" * 50_000])
def test_a_hostile_argument_costs_little(text: str) -> None:
    assert len(list(find_possible_paths(["sh", "-c", text]))) <= MAX_WORDS
    list(find_module_paths(["python3", "-c", f"import {text}"]))


def test_existing_files_that_programs_read_implicitly_are_listed(tmp_path: Path) -> None:
    assert list_uncompared_files(tmp_path) == []
    (tmp_path / "Makefile").write_text("all:\n")
    (tmp_path / "tests").mkdir()
    assert list_uncompared_files(tmp_path) == ["Makefile", "tests/"]


def test_a_named_file_that_appears_is_asked_about_before_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "p"
    folder.mkdir()
    argv = "[sh, -c, 'test -e extra.sh && . ./extra.sh; make >> made.txt']"
    (folder / "orchestration.yaml").write_text(f"agents: {{x: {{kind: command, argv: {argv}}}}}\n")
    open_project(folder).trust.save_record()
    trust = open_project(folder).trust
    trust.ensure()
    looks: dict[Path, tuple[int, ...]] = {}
    trust.ensure_files("agents.x", looks)
    (folder / "made.txt").write_text("made\n")
    (folder / "extra.sh").touch()
    trust.ensure_files("agents.x", looks)
    (folder / "extra.sh").write_text("echo more\n")
    with pytest.raises(NotTrusted, match=r"agents\.x, file .*extra\.sh: not there"):
        trust.ensure_files("agents.x", looks)
