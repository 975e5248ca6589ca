"""The diff of a step whose code moves with the run, through a remote on this machine."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.cli_process import cli
from tests.acceptance.team_projects import make_project
from tests.web.conftest import Client, Serve


def test_a_step_shows_only_its_own_changes(moved: Path, serve: Serve) -> None:
    client = serve([moved])
    page = client.get("/p/moved/-/step/1").text
    assert "1 file changed, 2 insertions(+)" in page
    assert '<span class="add">+&lt;b&gt;+ main&lt;/b&gt;' in page
    assert "+ supervisor&lt;/b&gt;" in page, "the line before it, as context"
    assert '<span class="add">+&lt;b&gt;+ supervisor' not in page


def test_the_first_step_shows_its_whole_commit(moved: Path, serve: Serve) -> None:
    page = serve([moved]).get("/p/moved/-/step/0").text
    assert '<span class="add">+&lt;b&gt;+ supervisor' in page
    assert '<span class="file">+++ b/notes.md' in page


def test_a_missing_commit_is_reported(moved: Path, serve: Serve) -> None:
    (moved / ".git" / "objects").rename(moved / ".git" / "elsewhere")
    (moved / ".git" / "objects").mkdir()
    answer = serve([moved]).get("/p/moved/-/step/1")
    assert answer.status == 200
    assert "it can&#39;t be shown" in answer.text


def test_a_run_that_moves_no_code_has_no_diff(looking: Client) -> None:
    assert 'id="diff"' not in looking.get("/p/shop/-/step/0").text


def test_a_task_shows_its_merge_and_an_unmerged_one_its_branch(
    tmp_path: Path, serve: Serve
) -> None:
    tasks = [
        {"id": "one", "subject": "One", "role": "implementer"},
        {"id": "two", "subject": "Two", "role": "implementer"},
    ]
    plan = {
        "one": {"writes": {"shared.txt": "of one\n"}, "seconds": 0.4},
        "two": {"writes": {"shared.txt": "of two\n", "own.txt": "2\n"}},
    }
    project = make_project(tmp_path / "team", tasks, plan, is_repository=True)
    assert cli(project, "run").returncode == 1, "they have changed the same line"
    client = serve([project])
    merged, kept = (client.get(f"/p/team/-/step/{name}").text for name in ("one", "two"))
    assert '<span class="add">+of one' in merged
    assert "of two" not in merged.partition('id="diff"')[2].partition("</section>")[0]
    assert "HEAD...sequencer-team/default/two" in kept
    assert '<span class="add">+2' in kept
