"""What is explained: one screen first, all of it on request, in each form the same texts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from sequencer.cli.options import SCREEN_LINES, Verb
from sequencer.cli.program import COMMANDS, make_root_group
from tests.unit.cli.calling import call

COLUMNS = 80


def verb_of(name: str) -> Verb:
    found = make_root_group().get_command(click.Context(click.Command("sequencer")), name)
    assert isinstance(found, Verb)
    return found


def options_of(name: str) -> set[str]:
    return {word for option in verb_of(name).own for word in option.opts}


@pytest.mark.parametrize("verb", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_help_is_one_screen(
    tmp_path: Path, verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    lines = call(tmp_path, *verb, "--help").out.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= COLUMNS
    assert not any("<=" in line or "x>" in line for line in lines)
    if verb:
        # Also where the options have left little room.
        assert any(line.startswith("  ") and "sequencer" in line for line in lines[-12:])


@pytest.mark.parametrize("name", COMMANDS)
def test_all_help_has_every_option(tmp_path: Path, name: str) -> None:
    whole = call(tmp_path, name, "--help-all").out
    assert options_of(name) | {"--config", "--run"} <= set(whole.replace(",", " ").split())
    assert call(tmp_path, "help", name).out.replace("[OPTIONS] ", "").strip() == (
        whole.replace("[OPTIONS] ", "").strip()
    )


def test_the_full_help_screens_name_every_command(tmp_path: Path) -> None:
    first = call(tmp_path, "help").out
    assert first == call(tmp_path, "--help").out
    whole = call(tmp_path, "help", "all").out
    assert whole.strip() == call(tmp_path, "--help-all").out.strip()
    for name, entry in COMMANDS.items():
        assert name in first.replace(",", " ").split()
        assert whole.count(f"\n  {name} ") == 1
        assert entry.help in whole
    unknown = call(tmp_path, "help", "statsu")
    assert (unknown.code, "did you mean 'status' or 'start'?" in unknown.err) == (2, True)


def test_the_manual_page_has_every_command_and_option(tmp_path: Path) -> None:
    page = call(tmp_path, "help", "--man").out
    assert page.startswith(".TH SEQUENCER 1")
    for name in COMMANDS:
        section = page.split(f"\n.SS {name}\n")[1].split("\n.SS ")[0].replace("\\-", "-")
        assert all(option in section for option in options_of(name))
    # A line that begins with a mark of roff is one of ours.
    requests = {line.split()[0] for line in page.splitlines() if line.startswith(".")}
    assert requests == {".TH", ".SH", ".SS", ".B", ".PP", ".TP", ".nf", ".fi"}


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        ("bash", "data/bash-completion/completions/sequencer"),
        ("zsh", "data/zsh/site-functions/_sequencer"),
        ("fish", "config/fish/completions/sequencer.fish"),
    ],
)
def test_completion_is_installed_for_a_shell(
    tmp_path: Path, shell: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for _ in range(2):
        ended = call(tmp_path, "help", "--completion", shell, "--install")
        assert (ended.code, ended.out) == (0, "")
    assert (tmp_path / name).read_text() == call(tmp_path, "help", "--completion", shell).out
    (tmp_path / name).write_text("# mine, for sequencer\n")
    assert call(tmp_path, "help", "--completion", shell, "--install").code == 2
    assert (tmp_path / name).read_text() == "# mine, for sequencer\n"


def test_a_file_in_place_of_the_folder_of_completions_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "data").touch()
    ended = call(tmp_path, "help", "--completion", "bash", "--install")
    assert ended.code == 3
    assert "can't be made: Not a directory" in ended.err
    assert "XDG_DATA_HOME names another folder" in ended.err


@pytest.mark.parametrize("arguments", [("run", "--man"), ("--install",)], ids=" ".join)
def test_meaningless_arguments_are_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert call(tmp_path, "help", *arguments).code == 2
