from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sequencer.errors import UsageRefused
from sequencer.plugins.schedules.installers import REGULAR, cron_times
from tests.unit.cli.calling import call, project, worked

ODD = 'it\'s 50% "off" $HOME; !x & `y` \\z'


def entry_of(text: str) -> tuple[list[str], str]:
    """Return the five time fields and the command that cron would hand to sh."""
    line = next(line for line in text.splitlines() if not line.startswith("#"))
    fields = line.split(" ", 5)
    # cron: an unescaped % ends the command, an escaped one loses its backslash.
    assert not re.search(r"(?<!\\)%", fields[5])
    return fields[:5], fields[5].replace(r"\%", "%")


def units_of(text: str) -> tuple[configparser.ConfigParser, configparser.ConfigParser]:
    """Return service and timer; duplicate keys would be refused by the parser."""
    service, timer = text.split("\n\n# Put this into", 1)
    found = []
    for part in (service, timer):
        parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string("#" + part)
        found.append(parser)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("every", "fields"),
    [
        (1, "* * * * *"),
        (5, "*/5 * * * *"),
        (30, "*/30 * * * *"),
        (60, "0 * * * *"),
        (180, "0 */3 * * *"),
        (1440, "0 0 * * *"),
    ],
)
def test_the_times_of_cron(every: int, fields: str) -> None:
    assert cron_times(every) == fields


@pytest.mark.parametrize("every", [7, 45, 90, 300, 1439])
def test_an_interval_that_cron_cannot_keep_is_refused(every: int) -> None:
    assert every not in REGULAR
    with pytest.raises(UsageRefused) as refused:
        cron_times(every)
    assert refused.value.hint is not None
    assert "1, 2, 3, 4, 5, 6, 10" in refused.value.hint


@pytest.mark.parametrize("every", ["0", "-5", "1441", "x"])
@pytest.mark.parametrize("verb", ["cron", "systemd"])
def test_a_meaningless_interval_is_refused(tmp_path: Path, verb: str, every: str) -> None:
    assert call(project(tmp_path), "schedule", "print", "--with", verb, "--every", every).code == 2


def test_the_command_of_cron_runs_a_step(tmp_path: Path) -> None:
    folder = project(tmp_path / ODD)
    called = call(folder, "schedule", "print", "--every", "10")
    assert called.code == 0, called.err
    fields, command = entry_of(called.out)
    assert fields == ["*/10", "*", "*", "*", "*"]
    # As cron does it: sh, another folder, almost no environment.
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd="/",
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SEQUENCER_TRUST": "all"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    log = (folder / "logs" / "tick.log").read_text()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), log
    assert (folder / "sync" / "state.json").exists(), log
    assert list((folder / "logs" / "local" / "steps").iterdir())


@pytest.mark.slow
def test_keys_come_from_a_file_and_are_not_inlined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(
        tmp_path / "app",
        "agent: {default: show}\nagents:\n  show:\n    kind: command\n"
        "    argv: [sh, -c, 'echo key=$MY_WORD']\n    pass_env: [MY_WORD]\n",
    )
    monkeypatch.setenv("MY_WORD", "in-the-environment")
    keys = tmp_path / "my keys.env"
    keys.write_text("MY_WORD='from the file'\n")
    called = call(folder, "schedule", "print", "--env-file", str(keys))
    assert "in-the-environment" not in called.out
    assert "from the file" not in called.out
    _, command = entry_of(called.out)
    subprocess.run(
        ["/bin/sh", "-c", command],
        cwd="/",
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SEQUENCER_TRUST": "all"},
        timeout=60,
        check=True,
    )
    log = next((folder / "logs" / "local" / "steps").iterdir()).read_text()
    assert "key=from the file" in log


def test_a_named_run_is_passed_on(tmp_path: Path) -> None:
    folder = worked(tmp_path / "app", 0)
    call(folder, "run", "--run", "Nightly build", "--max-steps", "1", "--quiet")
    _, command = entry_of(call(folder, "--run", "Nightly build", "schedule", "print").out)
    assert "'--run=Nightly build'" in command
    service, _ = units_of(
        call(folder, "--run", "Nightly build", "schedule", "print", "--with", "systemd").out
    )
    assert service["Service"]["ExecStart"].endswith('"--run=Nightly build"')
    assert call(folder, "--run", "nihgtly", "schedule", "print").code == 2


def test_an_entry_that_is_too_long_for_cron_is_refused(tmp_path: Path) -> None:
    folder = project(tmp_path / ("x" * 200) / ("y" * 200))
    called = call(folder, "schedule", "print")
    assert called.code == 2
    assert "--with systemd" in called.err


@pytest.mark.parametrize("verb", ["cron", "systemd"])
def test_a_folder_with_a_line_end_in_its_name_is_refused(tmp_path: Path, verb: str) -> None:
    called = call(project(tmp_path / "a\nb"), "schedule", "print", "--with", verb)
    assert called.code == 2
    assert "line break" in called.err


@pytest.mark.parametrize("verb", ["cron", "systemd"])
def test_a_folder_whose_name_is_not_utf8_is_called_that(tmp_path: Path, verb: str) -> None:
    called = call(project(tmp_path / "bad\udcff"), "schedule", "print", "--with", verb)
    assert called.code == 2
    assert "bad\\xff' is not UTF-8\n" in called.err


@pytest.mark.parametrize("name", ["a ", "a\\", "a\\\\"])
def test_a_name_ending_in_a_blank_or_backslash_is_refused_for_systemd(
    tmp_path: Path, name: str
) -> None:
    """The blank would go, and the backslash would join the next line, ExecStart say, to it."""
    folder, other = project(tmp_path / name), project(tmp_path / "other")
    odd = ["--env-file", str(tmp_path / f"keys-{name}")], ["--web", str(other), str(folder)]
    for where, options in ((folder, []), *((other, each) for each in odd)):
        called = call(where, "schedule", "print", "--with", "systemd", *options)
        assert (called.code, "ends in a blank or a backslash" in called.err) == (2, True), options
    assert call(folder, "schedule", "print", "--with", "cron").code == 0


def test_odd_names_are_escaped_for_systemd(tmp_path: Path) -> None:
    folder = project(tmp_path / ODD)
    service, _ = units_of(
        call(
            folder, "schedule", "print", "--with", "systemd", "--env-file", str(folder / "k.env")
        ).out
    )
    section = service["Service"]
    assert section["WorkingDirectory"].replace("%%", "%") == str(folder)
    assert not re.search(r"(?<!%)%(?!%)", section["WorkingDirectory"])
    assert section["EnvironmentFile"].startswith("-/")
    command = section["ExecStart"]
    assert "50%% " in command
    assert "$$HOME" in command
    assert '\\"off\\"' in command
    assert "\\\\z" in command


def test_systemd_itself_accepts_the_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not here")
    folder = project(tmp_path / "my 50% app")
    out = call(folder, "schedule", "print", "--with", "systemd").out
    service, timer = out.split("\n\n# Put this into", 1)
    (tmp_path / "s.service").write_text(service)
    (tmp_path / "s.timer").write_text("#" + timer)
    done = subprocess.run(
        [verify, "verify", str(tmp_path / "s.service"), str(tmp_path / "s.timer")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert str(tmp_path) not in done.stderr, done.stderr


def test_without_a_configuration_the_current_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    _, command = entry_of(call(tmp_path, "schedule", "print").out)
    assert f"cd {shlex.quote(str(tmp_path))}" in command
    assert "--config" not in command


@pytest.mark.parametrize("verb", ["cron", "systemd"])
def test_schedule_print_writes_nothing_and_has_no_json(tmp_path: Path, verb: str) -> None:
    project(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    call(tmp_path, "schedule", "print", "--with", verb)
    assert sorted(tmp_path.rglob("*")) == before
    assert call(tmp_path, "schedule", "print", "--with", verb, "--json").code == 2


@pytest.mark.parametrize("verb", ["cron", "systemd"])
def test_a_timer_gets_the_state_folder_with_the_trust_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    folder = project(tmp_path / "app")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert (
        f"XDG_STATE_HOME={tmp_path / 'state'}"
        in call(folder, "schedule", "print", "--with", verb).out
    )
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert "XDG_STATE_HOME" not in call(folder, "schedule", "print", "--with", verb).out


@pytest.mark.parametrize("refused", ["daemon-reload", "enable", "restart"])
def test_an_installation_that_fails_leaves_the_files_of_before(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, programs = project(tmp_path / "p"), tmp_path / "bin"
    programs.mkdir()
    program = programs / "systemctl"
    units = tmp_path / "config" / "systemd" / "user"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def install(every: str, word: str) -> int:
        lines = ("#!/bin/sh", f'[ "$2" != {word} ]')
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)
        return call(folder, "schedule", "install", "--with", "systemd", "--every", every).code

    assert install("7", refused) == 2
    assert list(units.iterdir()) == []
    assert install("7", "none") == 0
    before = {path: path.read_bytes() for path in units.iterdir()}
    assert len(before) == 2
    assert install("9", refused) == 2
    assert {path: path.read_bytes() for path in units.iterdir()} == before
