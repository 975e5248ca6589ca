"""The buttons: each is the change that the command of its name makes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from sequencer import Head, commands
from tests.web.conftest import Client, Serve, words

LOGIN = "/p/shop/login-timeout"


def head_of(client: Client, name: str | None) -> Head:
    head = client.run(name).head
    assert head is not None
    return head


def newest(client: Client, name: str | None) -> dict[str, Any]:
    return list(client.run(name).history())[-1]


def test_approve_continues_the_run_and_records_who_approved(client: Client) -> None:
    url, gate = client.url("release-1.4"), head_of(client, "release-1.4").gate
    assert gate is not None
    answer = client.post(f"{url}/do/approve", {"token": gate.token, "back": url})
    assert (answer.status, answer.header("location")) == (303, url)
    assert head_of(client, "release-1.4").gate is None
    fact = newest(client, "release-1.4")
    assert (fact["event"], bool(fact["outcome"]["by"])) == ("approved", True)


def test_after_an_answer_the_pages_show_how_to_continue_the_run(client: Client) -> None:
    url, gate = client.url("release-1.4"), head_of(client, "release-1.4").gate
    assert gate is not None
    assert "answered;" not in words(client.get("/").text)
    client.post(f"{url}/do/approve", {"token": gate.token, "back": "/"})
    told = "sequencer --run release-1.4 run or a timer continues it"
    assert f"answered; {told}" in words(client.get("/").text)
    assert told in words(client.get(url).text)
    client.post(f"{url}/do/stop", {"back": "/"})
    page = words(client.get(url).text)
    assert "Next: sequencer --run release-1.4 resume" in page
    assert "answered;" not in words(client.get("/").text)


def test_a_page_warns_of_a_run_restored_to_an_older_state(client: Client, tmp_path: Path) -> None:
    folder = tmp_path / "shop" / "sync"
    older = shutil.copytree(folder, tmp_path / "older")
    client.run(None).do(commands.Skip())
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    page = words(client.get("/p/shop/-").text)
    assert "accepted steps may be missing" in page
    assert "Next: sequencer repair" in page
    assert "Accepted steps may be missing" in words(client.get("/").text)


def test_feedback_sends_it_back_with_the_text_and_without_secrets(
    client: Client, serve: Serve
) -> None:
    client = serve(client.projects, SHOP_API_KEY="sk-shop-0123456789abcdef")
    url, gate = client.url("release-1.4"), head_of(client, "release-1.4").gate
    assert gate is not None
    text = "Not with sk-shop-0123456789abcdef in it."
    form = {"token": gate.token, "text": text}
    assert client.post(f"{url}/do/feedback", form).status == 303
    fact = newest(client, "release-1.4")
    assert fact["event"] == "feedback"
    assert "sk-shop" not in fact["outcome"]["note"]
    assert fact["outcome"]["note"].startswith("Not with ")
    assert client.post(f"{url}/do/feedback", {"token": gate.token}).status == 409


def test_reject_ends_the_run(client: Client) -> None:
    url, gate = client.url("release-1.4"), head_of(client, "release-1.4").gate
    assert gate is not None
    client.post(f"{url}/do/reject", {"token": gate.token, "text": "too early"})
    assert head_of(client, "release-1.4").was_rejected


def test_an_answer_follows_its_edge_and_a_wrong_one_is_refused(client: Client) -> None:
    question = client.run("login-timeout").flow.questions(head_of(client, "login-timeout"))[0]
    form = {"token": question.token, "node": "decide", "value": "perhaps"}
    refused = client.post(f"{LOGIN}/do/answer", form)
    assert refused.status == 404
    assert "perhaps" in refused.text
    assert client.post(f"{LOGIN}/do/answer", {**form, "value": "send back"}).status == 303
    assert head_of(client, "login-timeout").asks == ("feedback",)
    again = client.run("login-timeout").flow.questions(head_of(client, "login-timeout"))[0]
    own = {"token": again.token, "node": "feedback", "text": "Shorter, please."}
    assert client.post(f"{LOGIN}/do/answer", own).status == 303
    assert head_of(client, "login-timeout").asks == ()


@pytest.mark.parametrize("verb", ["approve", "reject", "feedback"])
def test_a_decision_is_not_made_twice(client: Client, verb: str) -> None:
    url, gate = client.url("release-1.4"), head_of(client, "release-1.4").gate
    assert gate is not None
    form = {"token": gate.token + 1, "text": "late"}
    before = head_of(client, "release-1.4").revision
    assert client.post(f"{url}/do/{verb}", form).status == 409
    assert client.post(f"{url}/do/{verb}", {"text": "no token"}).status == 409
    assert head_of(client, "release-1.4").revision == before


def test_pause_resume_and_stop(client: Client) -> None:
    url = LOGIN
    client.post(f"{url}/do/pause")
    assert head_of(client, "login-timeout").status == "paused"
    assert "Resume" in client.get(url).text
    client.post(f"{url}/do/resume")
    assert head_of(client, "login-timeout").status == "waiting-approval"
    client.post(f"{url}/do/stop", {"text": "the release is out"})
    head = head_of(client, "login-timeout")
    assert (head.exit, head.exit_reason) == (True, "the release is out")
    assert "stopped" in client.get(url).text


def test_a_flow_whose_file_changed_keeps_its_drawing_and_offers_to_adopt_it(
    client: Client,
) -> None:
    before = client.get(LOGIN).text
    file = client.projects[0] / "code-review.md"
    file.write_text(file.read_text().replace("### tests\n", "### tests\n---\nmax_turns: 3\n---\n"))
    page = client.get(LOGIN).text
    assert "Its workflow was changed" in words(page)
    assert re.findall(r'id="n-[^"]*"', page) == re.findall(r'id="n-[^"]*"', before)
    assert "Do the tests pass?" in words(page)
    # What would be refused by now has no button.
    assert re.findall(r"/do/([a-z]+)", page) == ["adopt"]
    assert re.findall(r"/do/([a-z]+)", client.get(f"{LOGIN}/step/decide").text) == []
    assert "/do/answer" not in client.get("/").text.partition("login-timeout")[2][:3000]
    assert client.post(f"{LOGIN}/do/adopt").status == 303
    assert newest(client, "login-timeout")["event"] == "adopted"
    assert "Its workflow was changed" not in client.get(LOGIN).text
    assert "/do/answer" in client.get(LOGIN).text


def test_a_change_that_cannot_be_adopted_has_a_command_and_no_button(client: Client) -> None:
    file = client.projects[0] / "code-review.md"
    text = file.read_text()
    file.write_text(text.replace("decide", "choose"))
    page = client.get(LOGIN).text
    assert "the run is at 'decide'" in words(page), words(page)[:1500]
    assert "sequencer --run login-timeout reset" in page
    assert "/do/" not in page
    file.write_text(text.replace("flowchart TD", "flowchart DOWN"))
    page = client.get(LOGIN).text
    assert "sequencer check" in page
    assert "/do/" not in page
    assert 'id="n-decide"' in page


def test_retry_forgets_the_failures(client: Client) -> None:
    url = "/p/docs/nightly"
    assert head_of(client, "nightly").failures_in_row
    page, step = client.get(url).text, client.get(f"{url}/step/1")
    assert page.count("/do/retry") == 1
    assert step.text.count("/do/retry") == 1
    assert "/do/retry" not in client.get(f"{url}/step/0").text
    form = {"back": f"{url}/step/1", "node": ""}
    assert client.post(f"{url}/do/retry", form).status == 303
    assert head_of(client, "nightly").failures_in_row == 0
    assert "/do/retry" not in client.get(f"{url}/step/1").text
    assert "deploy failed" not in client.get("/").text


def test_unknown_changes_projects_and_runs_are_named(client: Client) -> None:
    for path in ("/p/shop/-/do/reset", "/p/none/-/do/pause", "/p/shop/none/do/pause"):
        answer = client.post(path)
        assert answer.status == 404
        assert "known " in answer.text
