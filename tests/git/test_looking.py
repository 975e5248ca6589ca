"""Commands that only look at a hostile project: nothing of it runs, nothing is reached or written.

The traps are git's own: whatever a repository can be configured to run or to reach. A canary
tells on every machine; where there is strace, each program and each connection is listed too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli_process import environment
from tests.acceptance.two_clones import TWO_NODES
from tests.clones import ENVIRONMENT, git

VERBS = (
    *("status", "next", "history", "runs", "gates", "log", "metrics", "check", "sync"),
    *("commit --dry-run", "gantt", "show", "check --settings", "simulate flow.md"),
)
OF_GIT = ("status", "check", "sync", "commit --dry-run")
"""Those that ask git most."""
PROJECT = """\
workflow: {name: standard}
agent: {default: rehearsal}
store: {kind: git, timeout_s: 3}
commit: {paths: ["**"]}
"""
KEYS = (
    *("core.sshCommand", "core.pager", "core.editor", "core.askPass", "core.gitProxy"),
    *("core.fsmonitor", "core.alternateRefsCommand", "diff.external", "gpg.program"),
    *("sequence.editor", "credential.helper", "credential.https://example.invalid.helper"),
    *("filter.evil.clean", "filter.evil.smudge", "filter.evil.process"),
    *("diff.evil.textconv", "diff.evil.command", "merge.evil.driver", "pager.status"),
    *("remote.origin.uploadpack", "remote.origin.receivepack"),
    *("interactive.diffFilter", "uploadpack.packObjectsHook", "trailer.x.command"),
)
HOOKS = ("post-checkout", "pre-push", "fsmonitor-watchman", "post-index-change", "pre-commit")


class Trap:
    """A folder in which everything that git can be told to run makes a canary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = folder / "canary"
        self.evil = folder / "evil.sh"
        folder.mkdir()
        # A filter passes on what it gets; a shell on another machine would wait for ever.
        self.evil.write_text(
            f'#!/bin/sh\necho "$0 $*" >> {self.canary}\n'
            'case "$*" in *127.0.0.1*) exit 1;; esac\nexec cat\n'
        )
        self.evil.chmod(0o755)

    def project(self, top: Path) -> Path:
        """Put a project into *top*, with attributes that name every driver."""
        (top / "prompts").mkdir(parents=True)
        for name in ("supervisor", "main"):
            (top / "prompts" / f"{name}.md").write_text(f"# {name}\n")
        (top / "orchestration.yaml").write_text(PROJECT)
        (top / "flow.md").write_text(TWO_NODES)
        (top / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
        (top / "file.txt").write_text("one\n")
        return top

    def arm(self, config: Path, hooks: Path, url: str) -> None:
        """Set every trap in the repository with *config*, whose remote is at *url*."""
        hooks.mkdir(exist_ok=True)
        for name in HOOKS:
            shutil.copy(self.evil, hooks / name)
        more = self.folder / f"{config.parent.name}-more"

        def put(file: Path, key: str, value: str) -> None:
            git(self.folder, "config", "--file", str(file), key, value)

        for key in KEYS:
            put(config, key, str(self.evil))
            put(more, key, str(self.evil))
        put(more, "core.hooksPath", str(hooks))
        put(config, "filter.evil.required", "true")
        put(config, "alias.status", f"!{self.evil}")
        put(config, "protocol.ext.allow", "always")
        put(config, "remote.origin.url", url)
        put(config, "include.path", str(more))
        put(config, "includeIf.onbranch:main.path", str(more))
        alternates = config.parent / "objects" / "info" / "alternates"
        alternates.write_text(f"{self.folder}/nowhere/objects\n")


def bare(trap: Trap) -> Path:
    """Return a folder of files that is a repository as well, in somebody's clone."""
    top = trap.folder / "clone"
    top.mkdir()
    git(top, "init", "-q", "-b", "main")
    inner = top / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "--bare", "-b", "main", ".")
    git(inner, "config", "--file", "config", "core.bare", "false")
    git(inner, "config", "--file", "config", "core.worktree", str(inner))
    trap.project(inner)
    trap.arm(inner / "config", inner / "hooks", "ssh://127.0.0.1:1/x")
    return inner


def cloned(trap: Trap, url: str) -> Path:
    """Return a clone with commits and changes, in whose configuration every trap is."""
    top = trap.project(trap.folder / "clone")
    git(top, "init", "-q", "-b", "main")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "first")
    (top / "file.txt").write_text("changed\n")
    trap.arm(top / ".git" / "config", top / ".git" / "hooks", url.format(trap.folder, trap.evil))
    return top


def elsewhere(trap: Trap) -> Path:
    """Return a project whose ``.git`` is a file that names another repository."""
    top = cloned(trap, "ssh://127.0.0.1:1/x")
    (top / ".git").rename(trap.folder / "elsewhere")
    (top / ".git").write_text("gitdir: ../elsewhere\n")
    return top


def promising(trap: Trap) -> Path:
    """Return a clone that lacks objects, and would fetch them by what it is told to run."""
    top = cloned(trap, "ext::{1}")
    for key, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
    ):
        git(top, "config", key, value)
    missing = git(top, "rev-parse", "HEAD:file.txt")
    (top / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    return top


MAKERS = {
    "bare": bare,
    "ssh": lambda trap: cloned(trap, "ssh://127.0.0.1:1/x"),
    "ext": lambda trap: cloned(trap, "ext::{1} %S"),
    "https": lambda trap: cloned(trap, "https://127.0.0.1:1/x"),
    "inside": lambda trap: cloned(trap, "./.git"),
    "elsewhere": elsewhere,
    "promising": promising,
}


def files(top: Path) -> dict[str, tuple[int, int]]:
    return {
        path.relative_to(top).as_posix(): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in top.rglob("*")
        if path.is_file()
    }


def looked(top: Path, verb: str, trace: Path | None) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "sequencer", *verb.split()]
    if trace is not None:
        argv = ["strace", "-f", "-s", "400", "-e", "trace=execve,connect", "-o", str(trace), *argv]
    identity = {name: text for name, text in ENVIRONMENT.items() if name.startswith("GIT_CONFIG")}
    return subprocess.run(
        argv,
        cwd=top,
        env=environment(**identity),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def strangers(trace: Path) -> list[str]:
    """Return every program that was run and every connection, but for git's own."""
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        is_ours = re.search(r'execve\("([^"]*/)?(git|python[0-9.]*|strace)", \["', line)
        if "connect(" in line and "AF_UNIX" not in line:
            found.append(line)
        if "execve(" in line and " = 0" in line and not is_ours:
            found.append(line)
    return found


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_looking_runs_nothing_of_a_hostile_repository(tmp_path: Path, kind: str) -> None:
    trap = Trap(tmp_path / "trap")
    top = MAKERS[kind](trap)
    trap.canary.unlink(missing_ok=True)
    before = files(top)
    trace = tmp_path / "trace" if shutil.which("strace") else None
    for verb in VERBS if kind == "ssh" else OF_GIT:
        done = looked(top, verb, trace)
        assert done.returncode in {0, 1, 2, 3}, (verb, done.stderr)
        assert "Traceback" not in done.stderr
        assert not trap.canary.exists(), (verb, trap.canary.read_text())
        if trace is not None:
            assert strangers(trace) == [], verb
        assert files(top) == before, verb


def test_the_traps_are_traps(tmp_path: Path) -> None:
    trap = Trap(tmp_path / "trap")
    top = cloned(trap, "ssh://127.0.0.1:1/x")
    trap.canary.unlink(missing_ok=True)
    for argv in (("status",), ("diff",), ("add", "."), ("ls-remote", "origin")):
        trap.canary.unlink(missing_ok=True)
        git(top, *argv, check=False)
        assert trap.canary.exists(), argv
