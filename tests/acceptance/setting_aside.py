"""Projects whose attempts fail in the worktree of their run, and what is in its files then."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.clones import ENVIRONMENT, git
from tests.unit.cli.calling import Called, call, project

ATTEMPTS = "refs/sequencer/attempts/default/"
STEPS = "[{name: one, text: One}, {name: two, text: Two}]"
FIRST = "echo one >> notes; echo new > new; chmod +x tool; git add notes; rm gone"
DIRT = "echo HALF >> notes; echo half > half; rm new; ln -s notes link; chmod -x tool; exit 1"
SET_ASIDE = "the changes of this attempt were set aside on "


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give git the name of a person."""
    for name, value in ENVIRONMENT.items():
        if name.startswith("GIT_"):
            monkeypatch.setenv(name, value)


def made(folder: Path, *acts: str, steps: str = STEPS, more: str = "") -> Path:
    """Return a project whose attempts in its run's worktree do *acts*, one after the other."""
    count = 'n=$(($(cat "$P/count") + 1)); echo $n > "$P/count"; cat > "$P/prompt.$n"'
    cases = " ".join(f"{n}) {act};;" for n, act in enumerate(acts, 1))
    act = f"P={shlex.quote(str(folder))}; {count}; case $n in {cases} esac"
    (folder.parent / "act.sh").write_text(act)
    names = ", ".join(name for name in ENVIRONMENT if name.startswith("GIT_"))
    agent = (
        f"{{kind: command, argv: [sh, {folder.parent}/act.sh], free: true, pass_env: [{names}]}}"
    )
    folder = project(
        folder,
        f"agent: hand\nagents: {{hand: {agent}}}\nworktree: true\nworkflow: work\n"
        f"workflows: {{work: {{kind: procedure, steps: {steps}}}}}\n{more}",
    )
    (folder / ".gitignore").write_text("sync/\nlogs/\nprompt.*\ncount\n*.tmp\n")
    (folder / "count").write_text("0")
    for name in ("notes", "gone", "tool"):
        (folder / name).write_text("start\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "start")
    return folder


def worktree(folder: Path) -> Path:
    [note] = (folder / "sync" / "worktrees").glob("run-*.json")
    return note.with_suffix("")


def one_step(folder: Path) -> Called:
    return call(folder, "run", "--max-steps", "1")


def files_of(folder: Path) -> dict[str, str]:
    """Return the files in *folder*, and what git says about them."""
    paths = (one for one in folder.rglob("*") if ".git" not in one.parts and not one.is_dir())
    found = {
        str(one.relative_to(folder)): (
            f"-> {one.readlink()}"
            if one.is_symlink()
            else f"{one.stat().st_mode:o} {one.read_text()}"
        )
        for one in paths
        if one.name != ".git"
    }
    for what in (["status", "--porcelain"], ["rev-parse", "HEAD"], ["symbolic-ref", "-q", "HEAD"]):
        found[what[0]] = git(folder, *what, check=False)
    return found


def refs(folder: Path) -> list[str]:
    return git(folder, "for-each-ref", "--format=%(refname)", ATTEMPTS).split()
