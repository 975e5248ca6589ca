"""A bare repository on disk and clones of it, made with git itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sequencer.plugins.git.process import Git
from sequencer.plugins.git.state.heartbeats import Heartbeats
from sequencer.plugins.git.state.objects import Objects
from sequencer.plugins.git.state.remote import Refs, Remote
from sequencer.project.store_requests import EVERYTHING
from sequencer.store.leases import Leases

STATE = "refs/heads/sequencer/default"
BEATS = "refs/heads/sequencer-beats/default"
LOCAL_BEATS = "refs/sequencer/origin/default/beats"
_WHO = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")


def git(folder: Path, *argv: str, stdin: bytes = b"") -> str:
    """Return what ``git ARGV`` prints in *folder*; a failure fails the test."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *_WHO, *argv],
        cwd=folder,
        input=stdin,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def new_remote(folder: Path) -> Path:
    """Make an empty bare repository."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--bare", "-b", "main")
    return folder


def new_clone(remote: Path, folder: Path) -> Path:
    """Make a clone; nothing is checked out."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "-b", "main")
    git(folder, "remote", "add", "origin", str(remote))
    return folder


def add_hook(remote: Path, name: str, script: str) -> None:
    """Give the repository a hook that runs *script*."""
    hook = remote / "hooks" / name
    hook.write_text(f"#!/bin/sh\n{script}\n")
    hook.chmod(0o755)


def lose_acknowledgements(remote: Path) -> None:
    """Let every push be accepted, and the connection be cut before that is said."""
    add_hook(remote, "reference-transaction", 'test "$1" != committed || kill -KILL $PPID')


def commit(clone: Path, files: dict[str, bytes], *, parent: str | None = None) -> str:
    """Return a commit with *files*, whose names may be anything."""
    lines = b"".join(
        b"100644 blob %s\t%s\0"
        % (git(clone, "hash-object", "-w", "--stdin", stdin=data).encode(), os.fsencode(name))
        for name, data in files.items()
    )
    tree = git(clone, "mktree", "-z", stdin=lines)
    return git(clone, "commit-tree", tree, "-m", "x", *(("-p", parent) if parent else ()))


def push(clone: Path, oid: str, ref: str) -> None:
    """Put *oid* on *ref* of the remote, whatever was there."""
    git(clone, "push", "--quiet", "--force", "origin", f"{oid}:{ref}")


def tip(remote: Path, ref: str) -> str | None:
    """Return where *ref* is in the bare repository."""
    return git(remote, "for-each-ref", "--format=%(objectname)", ref) or None


def files(remote: Path, ref: str) -> dict[str, bytes]:
    """Return what the tree of *ref* holds."""
    names = git(remote, "ls-tree", "--name-only", ref).splitlines()
    return {name: git(remote, "cat-file", "blob", f"{ref}:{name}").encode() for name in names}


def new_beats(clone: Path, *, timeout_s: float = 20.0) -> Heartbeats:
    """Return the beats of one worker in *clone*."""
    here = Git(clone, timeout_s=timeout_s, allowed=EVERYTHING)
    return Heartbeats(
        Remote(here, "origin"),
        Objects(here),
        Leases(clone / "sync" / "beats"),
        Refs(STATE, BEATS, LOCAL_BEATS.removesuffix("/beats")),
    )
