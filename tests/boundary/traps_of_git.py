"""Traps that are git's: a repository's own configuration, its hooks, links and remotes."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from tests.boundary.projects import Project, Trap, add, trap
from tests.boundary.world import World

KEYS = {
    "fsmonitor": '[core]\n\tfsmonitor = "{evil}"\n',
    "ssh-command": '[core]\n\tsshCommand = "{evil}"\n',
    "pager": '[core]\n\tpager = "{evil}"\n[pager]\n\tstatus = "{evil}"\n\tlog = "{evil}"\n',
    "editor": '[core]\n\teditor = "{evil}"\n[sequence]\n\teditor = "{evil}"\n',
    "ask-pass": '[core]\n\taskPass = "{evil}"\n',
    "git-proxy": '[core]\n\tgitProxy = "{evil}"\n',
    "hooks-path": '[core]\n\thooksPath = "{hooks}"\n',
    "diff-external": '[diff]\n\texternal = "{evil}"\n[diff "evil"]\n\tcommand = "{evil}"\n',
    "textconv": '[diff "evil"]\n\ttextconv = "{evil}"\n\tcachetextconv = true\n',
    "filter": '[filter "evil"]\n\tclean = "{evil}"\n\tsmudge = "{evil}"\n\trequired = true\n',
    "filter-process": '[filter "evil"]\n\tprocess = "{evil}"\n\trequired = true\n',
    "merge-driver": '[merge "evil"]\n\tname = evil\n\tdriver = "{evil}"\n',
    "credential-helper": '[credential]\n\thelper = "{evil}"\n\thelper = "!{evil}"\n',
    "alias": '[alias]\n\tstatus = "!{evil}"\n\trev-parse = "!{evil}"\n\tst = "!{evil}"\n',
    "upload-pack": '[remote "origin"]\n\tuploadpack = "{evil}"\n\treceivepack = "{evil}"\n',
    "remote-helper": '[remote "origin"]\n\tvcs = ext\n[protocol "ext"]\n\tallow = always\n',
    "instead-of": '[url "ext::{evil} "]\n\tinsteadOf = "{remote}"\n'
    '[protocol "ext"]\n\tallow = always\n',
    "signing": '[gpg]\n\tprogram = "{evil}"\n[commit]\n\tgpgSign = true\n',
    "alternate-refs": '[core]\n\talternateRefsCommand = "{evil}"\n',
    "include": '[include]\n\tpath = "{included}"\n[includeIf "gitdir:**"]\n\tpath = "{included}"\n',
    "submodule": '[submodule "sub"]\n\turl = "ext::{evil}"\n\tupdate = "!{evil}"\n',
    "trailer": '[trailer "x"]\n\tcommand = "{evil}"\n\tcmd = "{evil}"\n',
    "pack-hook": '[uploadpack]\n\tpackObjectsHook = "{evil}"\n',
    "worktree": '[core]\n\tworktree = "{secrets}"\n',
}
"""Sections of a .git/config; each value in braces is a program, or a place, of the stranger's."""
HOOKS = (
    "applypatch-msg", "pre-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg",
    "commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push",
    "reference-transaction", "fsmonitor-watchman", "post-index-change", "pre-auto-gc",
    "post-rewrite", "update", "pre-receive", "post-receive", "proc-receive",
)  # fmt: skip
STORE = {"kind": "git", "timeout_s": 3, "retry_for_s": 0}
COMMITTED = {"paths": ["docs/"], "tracked_output_extensions": [".txt"]}


def write_hooks(world: World, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for hook in HOOKS:
        shutil.copy2(world.evil(f"{name}-{hook}"), folder / hook)


def section(world: World, name: str) -> str:
    """Return the section *name* of a configuration, its canaries made."""
    hooks, included = world.strangers / "hooks", world.strangers / "included"
    write_hooks(world, hooks, "hooks-path")
    program = world.evil(f"included-{name}")
    included.write_text(f'[core]\n\tfsmonitor = "{program}"\n\tsshCommand = "{program}"\n')
    places = {"hooks": hooks, "included": included, "secrets": world.secrets}
    remote = f"file://{world.served}/evil.git"
    return KEYS[name].format(evil=world.evil(f"git-{name}"), remote=remote, **places)


def repository(project: Project, remote: str = "") -> Path:
    """Make the project a repository with a commit and a changed file; return its folder."""
    bare = project.world.served / "evil.git"
    if not bare.exists():
        project.git("init", "-q", "--bare", "-b", "main", str(bare))
    project.git("init", "-q", "-b", "main")
    (project.folder / "docs").mkdir(exist_ok=True)
    (project.folder / "docs/a.txt").write_text("one\n")
    (project.folder / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (project.folder / ".gitignore").write_text("sync/\nlogs/\n")
    project.git("add", "--", "docs", ".gitattributes", ".gitignore", "prompts")
    project.git("commit", "-q", "-m", "begin")
    project.git("remote", "add", "origin", remote or f"file://{bare}")
    project.git("config", "branch.main.remote", "origin")
    project.git("config", "branch.main.merge", "refs/heads/main")
    write_hooks(project.world, bare / "hooks", "served")
    (project.folder / "docs/a.txt").write_text("two\n")
    project.document["store"] = dict(STORE)
    project.document["commit"] = COMMITTED
    return project.folder / ".git"


def _key(project: Project, name: str) -> None:
    config = repository(project, "ssh://localhost:9/x" if name == "ssh-command" else "") / "config"
    config.write_text(config.read_text() + section(project.world, name))


NEVER = ("fsmonitor", "pager", "editor", "hooks-path", "diff-external", "textconv", "alias")
"""What is run for nobody, trusted or not."""
for _name in KEYS:
    add(Trap(f"git-{_name}", partial(_key, name=_name), (0, 3) if _name in NEVER else ()))


@trap("git-all-keys")
def _all(project: Project) -> None:
    config = repository(project) / "config"
    kept = [section(project.world, name) for name in KEYS if name != "worktree"]
    config.write_text(config.read_text() + "".join(kept))


@trap("git-hooks", codes=(0, 3))
def _hooks(project: Project) -> None:
    write_hooks(project.world, repository(project) / "hooks", "hook")


@trap("git-bare")
def _bare(project: Project) -> None:
    """A folder of the clone that git takes for a bare repository."""
    text = "".join(section(project.world, name) for name in KEYS if name != "worktree")
    project.git("init", "-q")
    for name in ("objects/info", "refs/heads"):
        (project.folder / name).mkdir(parents=True)
    (project.folder / "HEAD").write_text("ref: refs/heads/main\n")
    write_hooks(project.world, project.folder / "hooks", "bare-hook")
    place = f'[core]\n\tbare = false\n\tworktree = "{project.folder}"\n'
    served = f'[remote "origin"]\n\turl = file://{project.world.served}/evil.git\n'
    (project.folder / "config").write_text(
        f"[core]\n\trepositoryformatversion = 0\n{place}{served}{text}"
    )
    shutil.rmtree(project.folder / ".git")
    project.git("init", "-q", str(project.folder.parent))
    project.document["store"] = dict(STORE)
    project.document["commit"] = COMMITTED


@trap("git-file")
def _file(project: Project) -> None:
    """A .git that is a file, and leads to a repository of the stranger's."""
    there = repository(project)
    away = project.world.strangers / "gitdir"
    there.rename(away)
    there.write_text(f"gitdir: {away}\n")
    config = away / "config"
    kept = [section(project.world, name) for name in KEYS if name != "worktree"]
    config.write_text(config.read_text() + "".join(kept))


@trap("git-link")
def _link(project: Project) -> None:
    there = repository(project)
    away = project.world.strangers / "linked-gitdir"
    there.rename(away)
    there.symlink_to(away)
    write_hooks(project.world, away / "hooks", "linked-hook")


@trap("git-alternates")
def _alternates(project: Project) -> None:
    info = repository(project) / "objects" / "info"
    (info / "alternates").write_text(f"{project.world.served}/evil.git/objects\n")


@trap("git-submodules")
def _submodules(project: Project) -> None:
    there = repository(project)
    evil = project.world.evil("submodule-url")
    (project.folder / ".gitmodules").write_text(
        f'[submodule "sub"]\n\tpath = sub\n\turl = ext::{evil}\n\tupdate = checkout\n'
    )
    oid = project.git("rev-parse", "HEAD")
    project.git("update-index", "--add", "--cacheinfo", f"160000,{oid},sub")
    nested = project.folder / "sub"
    nested.mkdir()
    shutil.copytree(there, nested / ".git")
    config = nested / ".git" / "config"
    kept = [section(project.world, name) for name in KEYS if name != "worktree"]
    config.write_text(config.read_text() + "".join(kept))


@trap("git-branch-names")
def _branches(project: Project) -> None:
    there = repository(project)
    evil = project.world.evil("branch-name")
    oid = project.git("rev-parse", "HEAD")
    for name in ("--upload-pack=x", "$(id)", "-rf", "a;id"):
        (there / "refs/heads" / name).write_text(f"{oid}\n")
    (there / "HEAD").write_text("ref: refs/heads/--upload-pack=x\n")
    project.document["store"] |= {"work": {"branch": "current"}, "remote": f"ext::{evil}"}


REMOTES = {
    "ext": "ext::{evil}",
    "option": "--upload-pack={evil}",
    "proxy": "ssh://-oProxyCommand={evil}/x",
    "file": "file://{served}",
    "folder": "{served}",
    "network": "https://198.51.100.7/x.git",
}
for _name, _address in REMOTES.items():

    def _remote(project: Project, name: str = _name, address: str = _address) -> None:
        repository(project)
        served, evil = project.world.served / "evil.git", project.world.evil(f"remote-{name}")
        project.document["store"]["remote"] = address.format(evil=evil, served=served)

    add(Trap(f"remote-{_name}", _remote))
