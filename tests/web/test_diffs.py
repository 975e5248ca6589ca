"""The diff of a step whose code moves with the run, through a remote on this machine."""

from __future__ import annotations

from pathlib import Path

from tests.web.conftest import Client


def test_a_step_shows_what_it_has_changed_and_only_that(moved: Path) -> None:
    client = Client([moved])
    page = client.get("/p/moved/-/step/1").text
    assert "1 file changed, 2 insertions(+)" in page
    assert '<span class="add">+&lt;b&gt;+ main&lt;/b&gt;' in page
    assert "+ supervisor&lt;/b&gt;" in page, "the line before it, as context"
    assert '<span class="add">+&lt;b&gt;+ supervisor' not in page


def test_of_the_first_step_its_whole_commit_is_shown(moved: Path) -> None:
    page = Client([moved]).get("/p/moved/-/step/0").text
    assert '<span class="add">+&lt;b&gt;+ supervisor' in page
    assert '<span class="file">+++ b/notes.md' in page


def test_a_commit_that_is_gone_is_said(moved: Path) -> None:
    (moved / ".git" / "objects").rename(moved / ".git" / "elsewhere")
    (moved / ".git" / "objects").mkdir()
    answer = Client([moved]).get("/p/moved/-/step/1")
    assert answer.status == 200
    assert "it can&#39;t be shown" in answer.text


def test_a_run_that_moves_no_code_has_no_diff(looking: Client) -> None:
    assert 'id="diff"' not in looking.get("/p/shop/-/step/0").text
