"""What a repository's own configuration may not do, and what its user's may."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from sequencer.errors import ConfigurationError
from sequencer.plugins.git.process import Git, GitFailed, acting_settings
from sequencer.project.store_requests import EVERYTHING
from tests.clones import git


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "clone"
    made.mkdir()
    git(made, "init", "-q", "-b", "main")
    git(made, "init", "-q", "--bare", str(tmp_path / "remote.git"))
    git(made, "remote", "add", "origin", str(tmp_path / "remote.git"))
    (made / "a.txt").write_text("a\n")
    git(made, "add", ".")
    git(made, "commit", "-q", "-m", "first")
    return made


def canary(tmp_path: Path) -> tuple[Path, Path]:
    """Return a program and the file that it makes when it is run."""
    program, sign = tmp_path / "evil.sh", tmp_path / "canary"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {sign}\nexec cat\n')
    program.chmod(0o755)
    return program, sign


def environment(tmp_path: Path, users: str = "") -> dict[str, str]:
    """Return the environment of a user with *users* in their own configuration."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / ".gitconfig").write_text(users)
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_SYSTEM": "/dev/null"}


def smudged(folder: Path) -> None:
    (folder / ".gitattributes").write_text("*.txt filter=x diff=x merge=x\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "attributes")
    (folder / "a.txt").write_text("b\n")


@pytest.mark.parametrize("where", ["include.path", "includeIf.onbranch:main.path"])
def test_settings_included_by_the_repository_are_not_trusted_either(
    folder: Path, tmp_path: Path, where: str
) -> None:
    smudged(folder)
    program, sign = canary(tmp_path)
    more = folder / "more"
    git(folder, "config", where, "../more")
    env, seen = environment(tmp_path), []
    for text in ("", f'[filter "x"]\n\tclean = {program}\n'):
        more.write_text(text)
        seen.append(acting_settings(folder, environment=env))
        Git(folder, env).run("status", "--porcelain")
    assert [set(found) for found in seen] == [set(), {"filter.x.clean"}]
    assert not sign.exists()


def settings_of(open_git: Git) -> list[str]:
    """Return what git goes by in the end, the last word of each key last."""
    told = open_git.run("config", "--list", "-z").stdout.decode()
    return told.replace("\n", "=").split("\0")


def last(open_git: Git, key: str) -> str:
    return [line for line in settings_of(open_git) if line.startswith(f"{key}=")][-1]


def test_hooks_from_settings_of_newer_git_versions_are_off(folder: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    git(folder, "config", "hook.x.command", "evil")
    git(folder, "config", "hook.x.event", "pre-commit")
    assert acting_settings(folder, environment=env) == {
        "hook.x.command": "evil",
        "hook.x.event": "pre-commit",
    }
    careful = Git(folder, env, allowed={})
    assert last(careful, "hook.x.command") == "hook.x.command=true"
    # An empty one ends the list of those before it.
    assert last(careful, "hook.x.event") == "hook.x.event="


def test_a_count_of_settings_that_git_refuses_is_reported(folder: Path, tmp_path: Path) -> None:
    env = {**environment(tmp_path), "GIT_CONFIG_COUNT": "9" * 5000}
    with pytest.raises(GitFailed, match="too many entries in GIT_CONFIG_COUNT"):
        settings_of(Git(folder, env, allowed={}))


def test_settings_of_the_user_take_precedence(folder: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, "[core]\n\tsshCommand = mine\n[credential]\n\thelper = mine\n")
    git(folder, "config", "core.sshCommand", "evil")
    git(folder, "config", "core.attributesFile", "/etc/passwd")
    git(folder, "config", "credential.https://example.org.helper", "!evil")
    careful = Git(folder, env, allowed={})
    assert last(careful, "core.sshcommand") == "core.sshcommand=mine"
    assert last(careful, "core.attributesfile") == "core.attributesfile="
    helpers = [line for line in settings_of(careful) if ".helper=" in line or "l.helper" in line]
    # One that is empty ends the list of those before it.
    assert helpers[-2:] == ["credential.helper=", "credential.helper=mine"]
    assert last(Git(folder, env, allowed=EVERYTHING), "core.sshcommand") == "core.sshcommand=evil"
    plain = Git(folder, environment(tmp_path), allowed={})
    assert last(plain, "core.sshcommand") == "core.sshcommand=ssh"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("remote.origin.url", "https://example.org/elsewhere"),
        ("remote.origin.pushurl", "https://example.org/elsewhere"),
        ("url.https://example.org/.insteadOf", "/"),
        ("url.x; touch evil #.insteadOf", "/"),
        ("core.gitProxy", "evil"),
        ("remote.origin.uploadpack", "evil"),
        ("remote.origin.receivepack", "evil"),
    ],
)
def test_nothing_is_sent_elsewhere_than_was_allowed(
    folder: Path, tmp_path: Path, key: str, value: str
) -> None:
    env = environment(tmp_path)
    allowed = acting_settings(folder, "origin", env)
    Git(folder, env, allowed=allowed).run("ls-remote", "--", "origin")
    git(folder, "config", key, value)
    with pytest.raises(ConfigurationError, match="did not trust this project with that") as refused:
        Git(folder, env, allowed=allowed).run("ls-remote", "--", "origin")
    # What the hint says can be pasted.
    command = (refused.value.hint or "").partition("otherwise ")[2]
    words = shlex.split(command if " '" in command else command.strip("'"))
    assert words[:3] == ["git", "config", "--unset-all"]
    assert [word.lower() for word in words[3:]] == [key.lower()]
    Git(folder, env, allowed=allowed).run("status")


def test_a_read_only_command_reaches_no_remote(folder: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    for argv in (("ls-remote",), ("fetch",), ("push",)):
        with pytest.raises(GitFailed, match="only looks does not ask the remote"):
            Git(folder, env).run(*argv, "--", "origin")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ext::sh -c true", "git-remote-ext"),
        ("./evil.git", "is inside the project"),
        ("evil", "is inside the project"),
        (".", "is inside the project"),
        ("file://{}/evil.git", "is inside the project"),
        ("../clone/evil.git", "is inside the project"),
        ("gopher://example.org/x", "not one of git's own"),
    ],
)
def test_remotes_that_are_never_reached(
    folder: Path, tmp_path: Path, address: str, words: str
) -> None:
    git(folder, "init", "-q", "--bare", "evil.git")
    address = address.format(folder)
    for name in ("origin", address):
        git(folder, "remote", "set-url", "origin", address)
        with pytest.raises(ConfigurationError, match=words):
            Git(folder, environment(tmp_path), allowed=EVERYTHING).run("fetch", "--", name)


def test_a_bare_repository_among_the_files_is_not_used(folder: Path, tmp_path: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    git(inner, "init", "-q", "--bare", ".")
    with pytest.raises(GitFailed, match="cannot use bare repository"):
        Git(inner, environment(tmp_path), allowed=EVERYTHING).run("rev-parse", "--git-dir")
    assert acting_settings(inner) == {}
    told = Git(inner, environment(tmp_path), git_dir=inner).read_output(
        "rev-parse", "--is-bare-repository"
    )
    assert told == "true"


def test_a_work_tree_elsewhere_needs_to_be_allowed(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "elsewhere"
    home.mkdir()
    git(folder, "config", "core.worktree", str(home))
    env = environment(tmp_path)
    top = ("rev-parse", "--show-toplevel")
    assert Git(folder, env).read_output(*top) == str(folder)
    assert Git(folder, env, allowed={"core.worktree": str(home)}).read_output(*top) == str(home)
