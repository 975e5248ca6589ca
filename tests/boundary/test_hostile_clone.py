"""The traps of a hostile clone are alive, and the tools that watch them see what springs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.boundary import hostile_clone
from tests.boundary.projects import TRAPS, Clones, Project
from tests.boundary.traced import Asked, asked, traced, tracer
from tests.boundary.traps_of_git import HOOKS, KEYS
from tests.boundary.watching import Command, Seen, look, wrong
from tests.boundary.world import World, differences
from tests.long.report import Size

needs_a_tracer = pytest.mark.skipif(tracer() is None, reason="strace can't be used here")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world")


def armed(world: World, name: str) -> Project:
    return Clones(world).make("armed", TRAPS[name])


def obeyed(project: Project, *argv: str) -> list[str]:
    """Return the canaries that spring when *argv* is called as a careless program would."""
    subprocess.run(
        argv, cwd=project.folder, env=project.world.environment(), capture_output=True, check=False,
        stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip
    return project.world.sprung()


def test_there_are_enough_traps() -> None:
    assert len(TRAPS) >= 100
    assert len(KEYS) >= 20
    assert len(HOOKS) >= 20


@pytest.mark.parametrize(
    ("name", "argv", "canary"),
    [
        ("git-fsmonitor", ("git", "status"), "git-fsmonitor"),
        ("git-bare", ("git", "status"), "git-include"),
        ("git-file", ("git", "status"), "git-include"),
        ("git-filter", ("git", "status"), "git-filter"),
        ("git-filter-process", ("git", "add", "."), "git-filter-process"),
        ("git-ssh-command", ("git", "fetch"), "git-ssh-command"),
        ("git-upload-pack", ("git", "fetch"), "git-upload-pack"),
        ("git-textconv", ("git", "diff"), "git-textconv"),
        ("git-diff-external", ("git", "diff"), "git-diff-external"),
        ("git-hooks", ("git", "commit", "-a", "-m", "x"), "hook-pre-commit"),
        ("git-hooks-path", ("git", "commit", "-a", "-m", "x"), "hooks-path-pre-commit"),
        ("git-include", ("git", "status"), "included-include"),
        ("git-instead-of", ("git", "fetch"), "git-instead-of"),
        ("shadows", (sys.executable, "-c", "import yaml"), "shadow--yaml.py"),
    ],
)
def test_a_trap_is_alive(name: str, argv: tuple[str, ...], canary: str, world: World) -> None:
    project = armed(world, name)
    sprung = obeyed(project, *argv)
    expected = canary if canary != "shadow--yaml.py" else f"shadow-{project.folder.name}-yaml.py"
    if name in ("git-bare", "git-file"):
        # Of several values of one key git takes the last one.
        assert any(found.startswith(("git-", "included-")) for found in sprung)
    else:
        assert expected in sprung


def test_a_touched_decoy_is_detected(world: World) -> None:
    untouched = world.outside()
    assert differences(untouched, world.outside()) == []
    (world.secrets / "id_rsa").unlink()
    (world.secrets / "token.json").write_text("x")
    (world.secrets / "more").touch()
    told = " ".join(differences(untouched, world.outside()))
    for words in ("id_rsa was removed", "token.json was changed", "more was made"):
        assert words in told


@needs_a_tracer
def test_requests_of_a_process_are_detected(world: World, tmp_path: Path) -> None:
    text = (
        "import os, socket, subprocess\n"
        f"open({str(world.secrets / 'id_rsa')!r})\n"
        f"os.symlink('x', {str(tmp_path / 'linked')!r})\n"
        f"os.unlink({str(tmp_path / 'linked')!r})\n"
        "subprocess.run(['git', 'status'])\n"
        "socket.socket().connect_ex(('127.0.0.1', 9))\n"
    )
    (tmp_path / "script.py").write_text(text)
    trace = tmp_path / "trace"
    subprocess.run(
        [*traced(trace), sys.executable, str(tmp_path / "script.py")],
        cwd=tmp_path,
        env=world.environment(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    trace.write_text(f'1 openat(AT_FDCWD, "/nowhere/boundary-0") = -1 E\n{trace.read_text()}')
    found = asked(trace)["0"]
    project = Project(world, world.clone / "none")
    seen = Seen(Command(project, ("status",)), 0, 0.0, 0.0, "", found)
    told = "\n".join(wrong(world, seen))
    for words in (
        f"opened {world.secrets}/id_rsa",
        f"wrote {tmp_path}/linked",
        "git without safe.bareRepository=explicit",
        "reached out: AF_INET",
    ):
        assert words in told


def test_a_wrong_command_is_detected(world: World) -> None:
    project = armed(world, "yaml-twice")
    (seen,) = look(
        world, [Command(project, ("status",), codes=(0,), names="a word that is not there")]
    )
    told = "\n".join(wrong(world, seen))
    assert "exit code 2" in told
    assert "does not name" in told


@pytest.mark.parametrize(
    ("argv", "told", "is_wrong"),
    [
        (("status",), "", True),
        (("log", "--path"), "", True),
        (("log",), "", False),
        (("log",), "\x1b[2J", True),
    ],
)
def test_output_that_controls_a_terminal_is_detected(
    world: World, argv: tuple[str, ...], told: str, *, is_wrong: bool
) -> None:
    command = Command(Project(world, world.clone / "none"), argv)
    seen = Seen(command, 0, 0.0, 0.0, f"\x1b[2J{told}", Asked(), told)
    assert any("printed" in text for text in wrong(world, seen)) is is_wrong


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_clone_full_of_traps_does_nothing(tmp_path: Path) -> None:
    report = hostile_clone.campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["traps"] >= 15
    assert report.counts["calls"] >= 30
