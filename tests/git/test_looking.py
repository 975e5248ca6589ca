"""Commands that only look at a hostile project: nothing of it runs, nothing is reached or written.

The traps are git's own: whatever a repository can be configured to run or to reach. A canary
tells on every machine; where there is strace, each program and each connection is listed too.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.acceptance.cli_process import environment
from tests.acceptance.two_clones import TWO_NODES
from tests.boundary import looks
from tests.boundary.traced import Asked, asked, traced, tracer
from tests.boundary.world import ROOT
from tests.clones import ENVIRONMENT, git
from tests.isolation import FAKE_PROGRAMS

VERBS = (
    *(
        "status",
        "plan",
        "history",
        "status --all",
        "inbox",
        "log",
        "report --metrics",
        "check",
        "sync",
    ),
    *("plan --commit", "report", "plan --list", "check --settings", "plan flow.md --simulate"),
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


def as_config(settings: Mapping[str, str]) -> str:
    """Return *settings* as a file of git's."""
    text = ""
    for key, value in settings.items():
        section, _, rest = key.partition(".")
        below, _, name = rest.rpartition(".")
        text += f'[{section} "{below}"]\n' if below else f"[{section}]\n"
        text += f'\t{name} = "{value}"\n'
    return text


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

        evil = dict.fromkeys(KEYS, str(self.evil))
        more.write_text(as_config({**evil, "core.hooksPath": str(hooks)}))
        settings = {
            **evil,
            "filter.evil.required": "true",
            "alias.status": f"!{self.evil}",
            "protocol.ext.allow": "always",
            "remote.origin.url": url,
            "include.path": str(more),
            "includeIf.onbranch:main.path": str(more),
        }
        with config.open("a") as file:
            file.write(as_config(settings))
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


def looked(top: Path, verbs: Iterable[str], place: Path) -> Iterator[tuple[str, str, Asked]]:
    """Call *verbs* in *top*; yield each with what it told, exit code first, and what it asked."""
    place.mkdir()
    commands = [{"folder": str(top), "argv": verb.split()} for verb in verbs]
    plan, trace = place / "plan.json", place / "trace"
    plan.write_text(json.dumps({"commands": commands, "starts": [], "limit_s": 60}))
    identity = {name: text for name, text in ENVIRONMENT.items() if name.startswith("GIT_CONFIG")}
    subprocess.run(
        [*(traced(trace) if tracer() else ()), sys.executable, "-P", "-m", looks.__name__, plan],
        env=environment(**identity, PYTHONPATH=str(ROOT)),
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )
    found = asked(trace) if tracer() else {}
    for number, ended in enumerate(json.loads((place / "ended.json").read_text())):
        told = f"{ended['code']}: {(place / f'{number}.err').read_text()}"
        yield " ".join(commands[number]["argv"]), told, found.get(str(number), Asked())


def is_of_git(program: str) -> bool:
    return Path(program).name == "git"


def is_list_of_timers(program: str, words: str) -> bool:
    """Return whether *program*, called with *words*, lists the crontab that tests have."""
    listed = f'["{FAKE_PROGRAMS / "crontab"}", "-l"]'
    return Path(program) == FAKE_PROGRAMS / "crontab" and listed in words


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_looking_runs_nothing_of_a_hostile_repository(tmp_path: Path, kind: str) -> None:
    trap = Trap(tmp_path / "trap")
    top = MAKERS[kind](trap)
    trap.canary.unlink(missing_ok=True)
    before, asked_git, asked_cron = files(top), False, False
    for verb, told, did in looked(top, VERBS if kind == "ssh" else OF_GIT, tmp_path / "looks"):
        assert told[:2] in {"0:", "1:", "2:", "3:"}, (verb, told)
        assert "Traceback" not in told, verb
        started = [(program, words) for program, words in did.executed if not is_of_git(program)]
        asked_git |= len(started) < len(did.executed)
        # The crontab is the person's own: a timer's line in it may find other programs.
        is_listed = [is_list_of_timers(*one) for one in started]
        assert all(is_listed), (verb, started)
        assert verb.startswith("check") or not is_listed, (verb, started)
        asked_cron |= bool(is_listed)
        assert did.network == [], verb
    assert (asked_git and asked_cron) or not tracer()
    assert not trap.canary.exists(), trap.canary.read_text()
    assert files(top) == before


def test_the_traps_really_spring(tmp_path: Path) -> None:
    trap = Trap(tmp_path / "trap")
    top = cloned(trap, "ssh://127.0.0.1:1/x")
    trap.canary.unlink(missing_ok=True)
    for argv in (("status",), ("diff",), ("add", "."), ("ls-remote", "origin")):
        trap.canary.unlink(missing_ok=True)
        git(top, *argv, check=False)
        assert trap.canary.exists(), argv
