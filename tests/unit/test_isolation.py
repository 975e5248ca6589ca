"""What tests find is the same wherever they run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sequencer.errors import UsageRefused
from sequencer.plugins.schedules.installers import Cron, Job
from sequencer.project import agents
from tests.isolation import CLIENTS, FAKE_PROGRAMS, isolate, kept, without_agents


def test_every_client_that_is_looked_for_is_kept_from_tests() -> None:
    assert sorted(CLIENTS) == sorted(agents.CLIENTS)


def test_the_environment_contains_nothing_from_the_person_who_runs_tests() -> None:
    own = kept(os.environ)
    ours = {"HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "SEQUENCER_TRUST", "GIT_CONFIG_NOSYSTEM"}
    # What Python, pytest's processes and the helper of forked commands add for themselves.
    added = {"LC_CTYPE", "COLUMNS", "LINES", "FORKED_COMMANDS_SOCKET"}
    assert set(os.environ) - set(own) - ours <= added
    assert list(Path.home().iterdir()) == []
    # A process of pytest-xdist has records of its own, which no test of another one removes.
    assert f"-{os.getpid()}-" in os.environ["XDG_STATE_HOME"]


def test_a_new_environment_contains_only_allowed_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(os.environ)
    variables = {"PYTHONUNBUFFERED": "1", "LANG": "de_DE.UTF-8", "GIT_DIR": "/", "PIP_CERT": "a"}
    for name, text in (before | variables).items():
        monkeypatch.setenv(name, text)
    isolate(tmp_path)
    assert variables.items() & os.environ.items() == {("PIP_CERT", "a")}
    assert (os.environ["HOME"], os.environ["PATH"]) == (str(tmp_path / "home"), before["PATH"])


def test_installed_agents_are_not_on_the_path_but_other_programs_are(tmp_path: Path) -> None:
    assert not any(map(shutil.which, CLIENTS))
    programs, links = tmp_path / "programs", tmp_path / "links"
    programs.mkdir()
    assert without_agents(programs, links) == programs
    for name in (*CLIENTS, "other"):
        (programs / name).write_text("#!/bin/sh\necho it runs\n")
        (programs / name).chmod(0o755)
    assert without_agents(programs, links) == links
    assert [path.name for path in links.iterdir()] == ["other"]
    assert subprocess.check_output([links / "other"], text=True) == "it runs\n"


def test_the_crontab_of_tests_is_empty_and_can_not_be_changed() -> None:
    assert Cron().describe_state("sequencer") == (False, "not installed")
    done = subprocess.run(["crontab", "-"], input=b"", capture_output=True, check=False)
    assert (done.returncode, b"change no crontab" in done.stderr) == (1, True)
    with pytest.raises(UsageRefused, match="change no crontab"):
        Cron().install(Job("sequencer", "ticks", ("sequencer",), "/", {}, None, 60))


@pytest.mark.parametrize("is_installed", [False, True])
def test_strace_is_the_installed_one_or_reports_that_it_cannot_trace(
    tmp_path: Path, is_installed: bool
) -> None:
    if is_installed:
        (tmp_path / "strace").write_text('#!/bin/sh\necho "traces $*"\n')
        (tmp_path / "strace").chmod(0o755)
    # Another clone's is no strace either.
    folders = [FAKE_PROGRAMS, Path("/elsewhere/tests/fake_programs"), tmp_path]
    done = subprocess.run(
        [FAKE_PROGRAMS / "strace", "-f", "a b"],
        env={"PATH": ":".join(map(str, folders))},
        capture_output=True,
        text=True,
        check=False,
    )
    expected = (0, "traces -f a b\n", "") if is_installed else (1, "", done.stderr)
    assert (done.returncode, done.stdout, done.stderr) == expected
    assert is_installed or "not permitted" in done.stderr
