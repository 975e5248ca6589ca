"""The diff of a step whose code moves with the run, through a remote on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sequencer.model.limits import InvocationLimits
from sequencer.project import open_project
from tests.web.conftest import Client

SETTINGS = """
workflow: {name: standard}
agent: {default: scribe}
agents:
  scribe:
    kind: command
    argv: [sh, -c, 'date +%N >> notes.md; echo "<b>+ $SEQUENCER_STEP</b>" >> notes.md']
    free: true
store: {kind: git}
commit: {paths: [notes.md]}
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQUENCER_TRUST", "all")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    folder = tmp_path / "moved"
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do the part of {name}.\n")
    (folder / "orchestration.yaml").write_text(SETTINGS)
    (folder / ".gitignore").write_text("sync/\nlogs/\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "A project")
    git(tmp_path, "clone", "-q", "--bare", str(folder), "shared.git")
    git(folder, "remote", "add", "origin", "../shared.git")
    open_project(folder, trust=True).run(None).work(limits=InvocationLimits(max_steps=3))
    return folder


def test_a_step_shows_what_it_has_changed_and_only_that(project: Path) -> None:
    client = Client([project])
    page = client.get("/p/moved/-/step/1").text
    assert "1 file changed, 2 insertions(+)" in page
    assert '<span class="add">+&lt;b&gt;+ main&lt;/b&gt;' in page
    assert "+ supervisor&lt;/b&gt;" in page, "the line before it, as context"
    assert '<span class="add">+&lt;b&gt;+ supervisor' not in page


def test_of_the_first_step_its_whole_commit_is_shown(project: Path) -> None:
    page = Client([project]).get("/p/moved/-/step/0").text
    assert '<span class="add">+&lt;b&gt;+ supervisor' in page
    assert '<span class="file">+++ b/notes.md' in page


def test_a_commit_that_is_gone_is_said(project: Path) -> None:
    (project / ".git" / "objects").rename(project / ".git" / "elsewhere")
    (project / ".git" / "objects").mkdir()
    answer = Client([project]).get("/p/moved/-/step/1")
    assert answer.status == 200
    assert "it can&#39;t be shown" in answer.text


def test_a_run_that_moves_no_code_has_no_diff(looking: Client) -> None:
    assert 'id="diff"' not in looking.get("/p/shop/-/step/0").text
