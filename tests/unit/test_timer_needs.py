"""`schedule install` and `check` say what a timer lacks, and `show` when it ticks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sequencer.plugins.schedules import timer_needs
from sequencer.plugins.schedules.timer_needs import find_missing_for_cron
from sequencer.plugins.schedules.timers import last_tick
from sequencer.project.project import open_project
from tests.isolation import FAKE_PROGRAMS
from tests.unit.cli.calling import Called, call, project

CONFIGURATION = """\
agent: anthropic
steps: [{name: build, text: Build., timeout_s: 60}]
workflows:
  tidy: {kind: procedure, steps: [{name: look, text: Look., timeout_s: 60}]}
schedules:
  nightly: {workflow: tidy, at: "0 2 * * *"}
"""
CRONTAB = """\
#!/bin/sh
[ "$1" = - ] && exec cat > "$0.tab"
[ -e "$0.tab" ] && exec cat "$0.tab"
echo "no crontab for you" >&2; exit 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project on a machine where cron works and mails."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("crontab", CRONTAB), ("sendmail", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{FAKE_PROGRAMS}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    monkeypatch.setattr(timer_needs, "MAIL_PATH", ())
    monkeypatch.setattr(timer_needs, "_is_running", lambda _: True)
    made = project(tmp_path / "p", CONFIGURATION)
    assert call(made, "trust", "--yes").code == 0
    return made


def install(folder: Path, *more: str) -> Called:
    ended = call(folder, "schedule", "install", "--with", "cron", "--all", *more)
    assert ended.code == 0, ended.err
    return ended


def test_nothing_is_missing_if_everything_is_present(folder: Path) -> None:
    said = install(folder).err
    assert "notice" not in said
    assert "a line was added to your crontab\n" in said
    assert "cron mails what you have to know\n" in said
    # And it says what comes next.
    assert "last tick: none yet\n" in said
    assert "next tick: 20" in said
    assert "nightly: it starts at 20" in said


def test_a_second_install_replaces(folder: Path) -> None:
    install(folder)
    said = install(folder, "--every", "5").err
    assert "the line in your crontab was replaced\n" in said
    assert "was added" not in said


def test_an_untrusted_project_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(folder, "trust", "--remove").code == 0
    missing = "notice: the project is not trusted\n  each tick refuses with exit code 2 until"
    assert missing in install(folder).err
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    assert "is not trusted (SEQUENCER_TRUST is set only in this shell)" in install(folder).err


def test_a_key_set_only_in_this_shell_is_reported_until_a_file_has_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-dummy-dummy-dummy")
    monkeypatch.setenv("OTHER_API_KEY", "sk-other-other-other")
    said = install(folder).err
    assert "notice: ANTHROPIC_API_KEY is set only in this shell\n" in said
    assert "OTHER_API_KEY" not in said
    found = [one["message"] for one in call(folder, "check", "--json").json["findings"]]
    assert "ANTHROPIC_API_KEY is set only in this shell" in found
    keys = folder.parent / "my keys.env"
    said = install(folder, "--env-file", str(keys)).err
    assert f"{keys} can't be read: No such file" in said
    keys.write_text("export ANTHROPIC_API_KEY=x\n")
    keys.chmod(0o644)
    assert f"other users may read {keys}" in install(folder, "--env-file", str(keys)).err
    keys.chmod(0o600)
    assert "notice" not in install(folder, "--env-file", str(keys)).err
    found = [one["message"] for one in call(folder, "check", "--json").json["findings"]]
    assert not [text for text in found if "only in this shell" in text]


def test_cron_without_mail_or_a_daemon_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_needs, "_is_running", lambda _: False)
    (folder.parent / "programs" / "sendmail").unlink()
    said = install(folder).err
    assert "notice: no cron daemon runs on this machine\n" in said
    assert "notice: no program on this machine sends mail (sendmail)" in said
    assert "tick-all.log" in said
    assert "cron mails what" not in said
    found = [one["message"] for one in call(folder, "check", "--json").json["findings"]]
    assert "no cron daemon runs on this machine" in found


@pytest.mark.parametrize(
    ("line", "is_reported"), [("MAILTO=", True), ('MAILTO=""', True), ("MAILTO=me", False)]
)
def test_an_empty_mailto_is_reported(folder: Path, line: str, is_reported: bool) -> None:
    del folder
    assert bool([*find_missing_for_cron([line], "log")]) == is_reported


def test_a_running_process_is_found_but_an_unknown_daemon_is_not() -> None:
    own = Path(f"/proc/{os.getpid()}/comm")
    if not own.exists():
        pytest.skip("no /proc")
    assert timer_needs._is_running({own.read_text().strip()})
    assert not timer_needs._is_running({"no-such-daemon"})


def test_show_has_the_interval_the_last_tick_and_the_next(folder: Path) -> None:
    install(folder, "--every", "30")
    shown = call(folder, "schedule", "show", "--with", "cron").out
    assert (
        "ticks: installed (crontab), every 30 minutes\n  last tick: none yet\n  next tick: 20"
        in shown
    )
    assert "nightly: it starts at 20" in shown
    stamp = time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(time.time() - 7200))
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "tick-all.log").write_text(f"{stamp}  default run:\n")
    shown = call(folder, "schedule", "show", "--with", "cron").out
    assert f"last tick: {stamp[:16]}\n" in shown
    assert (
        f"late: no tick has come since {stamp[:16]}, although one comes every 30 minutes" in shown
    )


def test_a_tick_in_the_future_is_not_the_last_tick(folder: Path) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "tick.log").write_text("2031-01-01 00:00:00+0000  nothing due\n" * 3)
    settings = open_project(folder).settings
    assert last_tick(settings, None) is None


def test_without_an_action_the_actions_are_listed(folder: Path) -> None:
    ended = call(folder, "schedule")
    assert ended.code == 2
    assert ended.err == (
        "error: ACTION is missing: expected install, show, remove or print\n"
        "  for example: sequencer schedule show\n"
    )


def test_a_schedule_whose_client_has_no_time_limit_is_a_warning(folder: Path) -> None:
    config = folder / "orchestration.yaml"
    config.write_text(config.read_text().replace("text: Look., timeout_s: 60", "text: Look."))
    found = [one["message"] for one in call(folder, "check", "--json").json["findings"]]
    assert "no time limit in look: if the client hangs, the run hangs with it" in found
    assert "no time limit in look" in install(folder).err
