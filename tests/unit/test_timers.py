"""Where the tick of a timer finds what this shell finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sequencer.plugins.schedules import timers
from sequencer.plugins.schedules.timers import parse_entries, path_for
from sequencer.project.project import open_project
from tests.isolation import FAKE_PROGRAMS
from tests.unit.cli.calling import call, project

CONFIGURATION = """\
agent: {default: tests}
agents:
  tests: {kind: command, argv: [our-tests, -q]}
  own: {kind: command, argv: [elsewhere], env: {PATH: /opt/own}}
  here: {kind: command, argv: [./run.sh]}
  python: {kind: command, argv: ["{python}", x.py]}
  other: {kind: claude, program: our-claude}
"""


def _finder(where: Mapping[str, str]) -> Callable[[str], str | None]:
    def find(program: str) -> str | None:
        return where.get(program)

    return find


@pytest.mark.parametrize(
    ("present", "where", "path"),
    [
        (
            "/opt/c:/opt/a:/opt/b:/usr/bin:/bin",
            {"claude": "/opt/b/claude", "node": "/opt/a/node", "git": "/usr/bin/git"},
            "/opt/a:/opt/b:/usr/bin:/bin:/usr/local/bin",
        ),
        ("", {}, "/usr/local/bin:/usr/bin:/bin"),
        # A relative entry would mean another folder under cron.
        (".:/usr/bin", {"git": "./git"}, "/usr/bin:/usr/local/bin:/bin"),
        ("/opt/a:/opt/a", {"git": "/opt/a/git"}, "/opt/a:/usr/local/bin:/usr/bin:/bin"),
    ],
)
def test_path_is_short_and_keeps_its_order(
    present: str, where: Mapping[str, str], path: str
) -> None:
    assert path_for([*where], present, _finder(where)) == path


@pytest.mark.parametrize("verb", ["cron", "systemd"])
def test_an_entry_includes_the_folders_of_the_projects_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    folder, programs = project(tmp_path / "p", CONFIGURATION), tmp_path / "programs"
    program(programs / "our-tests")
    monkeypatch.setenv("PATH", f"{programs}:{FAKE_PROGRAMS}:/usr/bin:/bin")
    assert f"PATH={programs}:" in call(folder, "schedule", "print", "--with", verb).out


def program(path: Path, text: str = "exit 0") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def findings(folder: Path) -> list[str]:
    found = call(folder, "check", "--json").json["findings"]
    return [f"{f['where']}: {f['message']}; {f['hint']}" for f in found if "timer" in str(f)]


def installed(folder: Path, text: str) -> None:
    """Let `crontab -l` print *text*."""
    program(folder / "crontab", f"[ \"$*\" = -l ] && cat <<'END'\n{text}\nEND")


def test_check_uses_the_path_of_the_installed_crontab_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, programs = project(tmp_path / "50% p", CONFIGURATION), tmp_path / "programs"
    program(programs / "our-tests")
    monkeypatch.setenv("PATH", f"{programs}:{FAKE_PROGRAMS}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert findings(folder) == [], "nothing is installed, and what is printed finds all"
    installed(programs, call(folder, "schedule", "print").out)
    assert findings(folder) == []
    installed(programs, call(folder, "schedule", "print").out.replace(f"PATH={programs}:", "PATH="))
    (found,) = findings(folder)
    assert f"does not find 'our-tests', which is {programs}/our-tests in this shell" in found
    assert found.startswith("the crontab: ")
    program(tmp_path / "older" / "our-tests")
    installed(
        programs, call(folder, "schedule", "print").out.replace(str(programs), f"{tmp_path}/older")
    )
    (found,) = findings(folder)
    assert f"but {tmp_path}/older/our-tests in a timer's tick" in found


def test_check_starts_nothing_for_an_untrusted_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, programs = project(tmp_path / "p", CONFIGURATION), tmp_path / "programs"
    program(programs / "crontab", f"touch {tmp_path}/asked")
    monkeypatch.setenv("PATH", f"{programs}:{FAKE_PROGRAMS}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for trusted in ("", "all"):
        monkeypatch.setenv("SEQUENCER_TRUST", trusted)
        call(folder, "check")
        assert (tmp_path / "asked").exists() == bool(trusted)


def test_check_uses_the_path_of_the_installed_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, programs = project(tmp_path / "50% p", CONFIGURATION), tmp_path / "programs"
    program(programs / "our-tests")
    monkeypatch.setenv("PATH", f"{programs}:{FAKE_PROGRAMS}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    unit = tmp_path / "config" / "systemd" / "user" / "sequencer-p.service"
    unit.parent.mkdir(parents=True)
    unit.write_text(call(folder, "schedule", "print", "--with", "systemd").out)
    assert findings(folder) == []
    unit.write_text(
        call(folder, "schedule", "print", "--with", "systemd").out.replace(f"{programs}:", "")
    )
    (found,) = findings(folder)
    assert found.startswith(f"{unit}: a timer's tick does not find 'our-tests'")


@pytest.mark.parametrize("kind", ["cron", "systemd", "launchd"])
def test_check_names_the_schedule_that_no_timer_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    dates = "schedules: {good night: {workflow: standard, at: 0 2 * * *}}\n"
    folder, programs = project(tmp_path / "50% p", CONFIGURATION + dates), tmp_path / "programs"
    program(programs / "our-tests")
    monkeypatch.setenv("PATH", f"{programs}:{FAKE_PROGRAMS}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (found,) = findings(folder)
    assert found == (
        "schedules.good night: no timer on this machine runs the ticks of this run, so it never "
        "starts; sequencer --run 'good night' schedule install"
    )
    place = {
        "cron": programs / "crontab",
        "systemd": tmp_path / ".config/systemd/user/t.service",
        "launchd": tmp_path / "Library/LaunchAgents/t.plist",
    }[kind]
    place.parent.mkdir(parents=True, exist_ok=True)
    for run, missing_requirements in (("other", True), ("good night", False)):
        (folder / "sync/runs" / run).mkdir(parents=True, exist_ok=True)
        text = call(folder, "--run", run, "schedule", "print", "--with", kind).out
        if kind == "cron":
            installed(programs, text)
        else:
            whole = text.partition("# Put this into ")[2].partition("\n")[2]
            place.write_text(whole.partition("\n\n# ")[0] + "\n")
        assert bool(findings(folder)) is missing_requirements, run


def test_a_timer_of_another_kind_is_recognized_by_its_ticks(tmp_path: Path) -> None:
    dates = "schedules: {night: {workflow: standard, at: 0 2 * * *}}\n"
    folder, now = project(tmp_path / "p", CONFIGURATION + dates), time.time()
    log = folder / "logs" / "tick.night.log"
    log.parent.mkdir(exist_ok=True)

    def ticked(*ago_s: float) -> list[str]:
        times = (time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(now - ago)) for ago in ago_s)
        log.write_text("".join(f"{one}  nothing due\n" for one in times))
        return findings(folder)

    assert ticked(7800, 4200, 600) == []
    assert "no timer" in ticked(70000, 66400, 62800)[0], "they have stopped"


def test_check_names_the_program_that_no_entry_could_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path / "p", CONFIGURATION)
    program(folder / "tools" / "our-tests")
    monkeypatch.setenv("PATH", f"tools:{FAKE_PROGRAMS}:/usr/bin:/bin")
    (found,) = findings(folder)
    assert "'our-tests', which is tools/our-tests in this shell" in found
    assert "give the program's full path" in found


@pytest.mark.parametrize(
    ("crontab", "paths"),
    [
        ("", []),
        ("0 * * * * cd /p && PATH=/a sequencer tick --log=l", ["/a"]),
        ("0 * * * * cd /p && sequencer tick", ["/usr/bin:/bin"]),
        ('PATH="/b:/c"\n0 * * * * cd /p && sequencer tick', ["/b:/c"]),
        ("# 0 * * * * cd /p && sequencer tick", []),
        ("0 * * * * cd /other && sequencer tick", []),
        ("0 * * * * cd /p && sequencer status\n0 * * * * it's", []),
    ],
)
def test_lines_of_a_crontab(crontab: str, paths: list[str]) -> None:
    assert [entry.path for entry in parse_entries(crontab, Path("/p"))] == paths


def test_an_absurd_time_in_the_log_does_not_hide_a_missed_tick(tmp_path: Path) -> None:
    settings = open_project(project(tmp_path / "p")).settings
    log = timers.tick_log(settings, None)
    log.parent.mkdir(exist_ok=True)
    hours = [f"2026-01-0{day} 02:00:00+0000  said\n" for day in range(1, 5)]
    log.write_text("".join(hours))
    pace = timers.find_tick_pace(settings, None)
    assert pace is not None
    assert (pace.pause_s, pace.is_missed) == (24 * 60 * 60, True)
    odd = "2026-13-45 02:00:00+0000  no date\n2126-01-01 02:00:00+0000  of another clock\n"
    log.write_text("".join(hours) + odd)
    assert timers.find_tick_pace(settings, None) == pace
    log.write_text("".join(hours) + "2026-01-06 02:00:00+0000  said\n")
    pace = timers.find_tick_pace(settings, None)
    assert pace is not None
    assert pace.pause_s == 48 * 60 * 60
