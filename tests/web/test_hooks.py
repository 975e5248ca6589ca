"""Runs that are started, answered and stopped from a tracker, through a server process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sequencer import Status, open_project
from sequencer.errors import WaitsForPerson
from tests.unit.posting.desk import Reply, open_desk
from tests.web.deliveries import (
    ANN,
    BOT,
    LINEAR_RUN,
    RUN,
    SETTINGS,
    Taker,
    at,
    calls,
    comment,
    event,
    facts,
    head_of,
    issue,
    labeled,
    linear,
    linear_comment,
    linear_issue,
    rows,
    run_of,
    session,
    signed,
    taking,
    until,
    wait_for,
)

# --- GitHub ----------------------------------------------------------------------------


def test_a_label_starts_a_run_and_comments_bring_it_to_its_end(taker: Taker, folder: Path) -> None:
    assert taker.send("github", labeled()) == (202, "taken")
    until(folder, Status.WAITING_APPROVAL)
    prompt = (folder / "prompt-look.txt").read_text(encoding="utf-8")
    assert "# Request: Login times out" in prompt
    assert "Identifier: acme/app#7" in prompt
    assert taker.send("github", comment("Look at the retry\nas well."))[0] == 202
    wait_for(lambda: calls(folder) == ["look", "ask", "look", "ask"], lambda: f"{calls(folder)}")
    assert "Look at the retry\nas well." in (folder / "prompt-look.txt").read_text("utf-8")
    until(folder, Status.WAITING_APPROVAL)
    assert taker.send("github", comment("> May it be fixed?\n\nApprove!\nbut be quick"))[0] == 202
    until(folder, Status.COMPLETE)
    approved = facts(folder, "approved")[-1]
    assert approved["outcome"]["by"] == "github:ann"
    assert approved["outcome"]["note"] == "but be quick"
    assert calls(folder)[-2:] == ["mend", "tell"]


@pytest.mark.slow
def test_a_comment_of_a_single_word_runs_no_step_again(taker: Taker, folder: Path) -> None:
    taker.send("github", labeled())
    until(folder, Status.WAITING_APPROVAL)
    taker.send("github", comment("LGTM!"))
    taker.until("one word other than 'approve' and 'reject' decides nothing")
    assert facts(folder, "feedback") == []
    assert calls(folder) == ["look", "ask"]


@pytest.mark.slow
def test_an_assignment_starts_a_run_and_unassigning_stops_it(taker: Taker, folder: Path) -> None:
    (folder / "hold-look").touch()
    bot = {"login": "Seq-Bot", "id": 5, "type": "Bot"}
    given = issue(labels=[], assignee=bot, assignees=[bot])
    assert taker.send("github", event("assigned", issue=given, assignee=bot))[0] == 202
    wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    taken = event("unassigned", "boss", issue=issue(labels=[]), assignee=bot)
    assert taker.send("github", taken)[0] == 202
    taker.until("took the issue away")
    taker.until("work on run acme-app-7 ended")
    head = head_of(folder)
    assert head is not None
    assert (head.exit, head.claims, head.step_index) == (True, (), 0)
    (folder / "hold-look").unlink()
    given["updated_at"] = at(2)
    assert taker.send("github", event("assigned", issue=given, assignee=bot))[0] == 202
    until(folder, Status.WAITING_APPROVAL)
    assert calls(folder) == ["look", "look", "ask"]


def test_a_comment_on_a_working_run_is_guidance(taker: Taker, folder: Path) -> None:
    (folder / "hold-look").touch()
    taker.send("github", labeled())
    wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    assert taker.send("github", comment("The proxy is {{steps.look.output}}."))[0] == 202
    taker.until("guidance by github:ann")
    (folder / "hold-look").unlink()
    until(folder, Status.WAITING_APPROVAL)
    prompt = (folder / "prompt-ask.txt").read_text(encoding="utf-8")
    assert "github:ann (https://github.com/acme/app/issues/7#issuecomment-1) wrote:" in prompt
    assert "The proxy is {{steps.look.output}}." in prompt
    taker.send("github", comment("approve"))
    until(folder, Status.COMPLETE)
    assert taker.send("github", comment("thanks!"))[0] == 202
    taker.until("the run is complete")


@pytest.mark.slow
def test_a_decision_word_without_a_question_is_not_guidance(taker: Taker, folder: Path) -> None:
    (folder / "hold-look").touch()
    taker.send("github", labeled())
    wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    taker.send("github", comment("approve"))
    taker.until("no question is waiting that 'approve' could answer")
    (folder / "hold-look").unlink()
    until(folder, Status.WAITING_APPROVAL)
    taker.send("github", comment("reject: works as designed"))
    assert until(folder, Status.COMPLETE).was_rejected


def test_only_permitted_people_may_stop_a_run(taker: Taker, folder: Path) -> None:
    taker.send("github", labeled())
    until(folder, Status.WAITING_APPROVAL)
    by_number = {"login": "renamed", "id": 77, "type": "User"}
    said = comment("stop")
    said["comment"]["user"] = said["sender"] = by_number
    taker.send("github", said)
    taker.until("the sender is not on the list of people who may stop")
    taker.send("github", comment("/stop"))
    taker.until("is stopped: github:ann said so")
    head = head_of(folder)
    assert head is not None
    assert head.exit


# --- Linear ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_label_in_linear_starts_a_run_and_removing_it_stops_it(
    taker: Taker, folder: Path
) -> None:
    changed = {"updatedFrom": {"labelIds": ["other"], "updatedAt": at(-60)}}
    assert taker.send("linear", linear("Issue", "update", linear_issue(), **changed)) == (
        200,
        "taken",
    )
    until(folder, Status.WAITING_APPROVAL, LINEAR_RUN)
    unrelated = {"updatedFrom": {"title": "before"}}
    status, why = taker.send("linear", linear("Issue", "update", linear_issue(), **unrelated))
    assert (status, why.startswith("nothing to do")) == (200, True)
    bare = linear_issue(labels=[], labelIds=[])
    lost = {"updatedFrom": {"labelIds": ["l-seq"]}}
    assert taker.send("linear", linear("Issue", "update", bare, **lost)) == (200, "taken")
    taker.until("linear:ann@example.invalid took the issue away")


def test_a_comment_in_linear_answers_a_question(taker: Taker, folder: Path) -> None:
    given = linear_issue(labels=[], labelIds=[], assignee=BOT)
    taker.send("linear", linear("Issue", "create", given))
    until(folder, Status.WAITING_APPROVAL, LINEAR_RUN)
    stranger = {**ANN, "id": "u-x", "email": "x@example.invalid", "name": "ann@example.invalid"}
    assert taker.send("linear", linear_comment("approve", stranger))[0] == 200
    assert taker.send("linear", linear_comment("approve")) == (200, "taken")
    until(folder, Status.COMPLETE, LINEAR_RUN)


@pytest.mark.slow
def test_an_agent_session_is_a_run(taker: Taker, folder: Path) -> None:
    assert taker.send("linear", session("created")) == (200, "taken")
    until(folder, Status.WAITING_APPROVAL, LINEAR_RUN)
    assert "do it" in (folder / "prompt-look.txt").read_text(encoding="utf-8")
    prompted = {"id": "a", "content": {"type": "prompt", "body": "approve"}, "user": ANN}
    soon = {**session("prompted", prompted), "createdAt": at(1)}
    assert taker.send("linear", soon) == (200, "taken")
    until(folder, Status.COMPLETE, LINEAR_RUN)


def test_a_linear_delivery_must_be_recent(taker: Taker) -> None:
    for off_s in (-61, 120):
        sent = int((time.time() + off_s) * 1000)
        late = linear("Issue", "create", linear_issue(), webhookTimestamp=sent)
        assert taker.send("linear", late) == (401, "webhookTimestamp is more than a minute off")


# --- what the run says ---------------------------------------------------------------------

SINKS = """
activity:
  thoughts: false
  sinks:
    github: {{kind: github, repository: acme/app, from_request: true, api_url: "{url}"}}
    elsewhere: {{kind: github, repository: acme/other, from_request: true, api_url: "{url}"}}
    linear: {{kind: linear, from_request: true, url: "{url}/graphql"}}
"""
TOKENS: dict[str, Any] = {"GITHUB_TOKEN": "t-github", "LINEAR_TOKEN": "t-linear"}


@pytest.mark.slow
def test_a_runs_posts_appear_on_its_issue_and_are_not_answers(folder: Path, tmp_path: Path) -> None:
    with open_desk(Reply(201, [])) as tracker:
        settings = SETTINGS + SINKS.format(url=tracker.url)
        (folder / "orchestration.yaml").write_text(settings, encoding="utf-8")
        with taking(folder, tmp_path / "state", **TOKENS) as taker:
            taker.send("github", labeled())
            tracker.wait_for(2)
            until(folder, Status.WAITING_APPROVAL)
            taker.until("ended with exit code 4")
            posted = [one for one in tracker.seen if one.method == "POST"]
            assert len(posted) == 2
            assert {one.path for one in posted} == {"/repos/acme/app/issues/7/comments"}
            # The account that posts is on the list, and the agent has said the word.
            for one in posted:
                said = comment("approve\n\n" + one.body["body"])
                assert taker.send("github", said) == (200, "nothing to do: a run posted it")
            taker.send("github", comment("approve"))
            until(folder, Status.COMPLETE)
            tracker.wait_for(len(facts(folder, "succeeded")))


def test_a_runs_posts_in_linear_are_recognized_by_id(folder: Path, tmp_path: Path) -> None:
    done = {"data": {"commentCreate": {"success": True}}}
    with open_desk(Reply(200, done)) as tracker:
        settings = SETTINGS + SINKS.format(url=tracker.url)
        (folder / "orchestration.yaml").write_text(settings, encoding="utf-8")
        with taking(folder, tmp_path / "state", **TOKENS) as taker:
            taker.send("linear", linear("Issue", "create", linear_issue()))
            until(folder, Status.WAITING_APPROVAL, LINEAR_RUN)
            posted = tracker.wait_for(2)
            assert {one.path for one in posted} == {"/graphql"}
            told = [one.body["variables"]["input"] for one in posted]
            assert {one["issueId"] for one in told} == {"ENG-42"}
            for one in told:
                said = linear_comment("approve")
                said["data"]["id"] = one["id"]
                taker.send("linear", said)
            wait_for(lambda: taker.said.count("a run posted it") == 2, lambda: taker.said)
            head = head_of(folder, LINEAR_RUN)
            assert head is not None
            assert head.is_at_gate


def test_the_posts_of_a_linear_agent_are_in_its_session(folder: Path, tmp_path: Path) -> None:
    done = {"data": {"agentActivityCreate": {"success": True}}}
    with open_desk(Reply(200, done)) as tracker:
        settings = SETTINGS + SINKS.format(url=tracker.url)
        (folder / "orchestration.yaml").write_text(settings, encoding="utf-8")
        with taking(folder, tmp_path / "state", **TOKENS) as taker:
            taker.send("linear", session("created"))
            until(folder, Status.WAITING_APPROVAL, LINEAR_RUN)
            told = [one.body["variables"]["input"] for one in tracker.wait_for(2)]
        assert {one["agentSessionId"] for one in told} == {"s-1"}
        assert "elicitation" in {one["content"]["type"] for one in told}


def test_a_silent_agents_start_is_posted_to_linear_before_its_step_ends(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "hold-look").touch()
    done = {"data": {"agentActivityCreate": {"success": True}}}
    with open_desk(Reply(200, done)) as tracker:
        settings = SETTINGS + SINKS.format(url=tracker.url).replace("thoughts: false", "")
        (folder / "orchestration.yaml").write_text(settings, encoding="utf-8")
        with taking(folder, tmp_path / "state", **TOKENS) as taker:
            taker.send("linear", session("created"))
            (first,) = tracker.wait_for(1)
            assert not facts(folder, "succeeded", LINEAR_RUN)
            (folder / "hold-look").unlink()
            until(folder, Status.WAITING_APPROVAL, LINEAR_RUN)
    content = first.body["variables"]["input"]["content"]
    assert content == {"type": "action", "action": "started", "parameter": "look"}


# --- bounds -------------------------------------------------------------------------------


def test_the_server_responds_while_the_work_is_blocked(taker: Taker, folder: Path) -> None:
    (folder / "hold-look").touch()
    taker.send("github", labeled())
    for number in range(20, 40):
        assert taker.send("github", labeled(number=number))[0] == 202
    assert len(open_project(folder, trust=True).run_names()) >= 1
    # The first run's step has not even ended: none of the answers waited for it.
    wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    (folder / "hold-look").unlink()


def test_the_server_prints_where_it_accepts_deliveries(taker: Taker) -> None:
    taker.until("app takes deliveries at /hooks/github")
    taker.until("app takes deliveries at /hooks/linear")


def test_the_command_line_alone_does_not_load_the_web_plugin() -> None:
    code = "import sequencer.cli.program, sys; print([m for m in sys.modules if '.hooks.' in m])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "sequencer.plugins.web" not in found.stdout
    assert json.loads(found.stdout.replace("'", '"')) == [] or "web" not in found.stdout


# --- one after the other ------------------------------------------------------------------


@pytest.mark.slow
def test_runs_wait_for_each_other_and_a_new_server_continues_them(
    folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (folder / "hold-look").touch()
    with taking(folder, state) as taker:
        taker.send("github", labeled(number=7))
        taker.send("github", labeled(number=8))
        wait_for(lambda: head_of(folder, "acme-app-8") is not None, lambda: taker.said)
        wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    # The run outlives its server, and the other one is not forgotten.
    (folder / "hold-look").unlink()
    until(folder, Status.WAITING_APPROVAL)
    assert calls(folder) == ["look", "ask"]
    with taking(folder, state):
        until(folder, Status.WAITING_APPROVAL, "acme-app-8")
    assert calls(folder) == ["look", "ask"] * 2


@pytest.mark.slow
def test_a_second_server_replaces_the_first(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with taking(folder, state) as first, taking(folder, state) as second:
        first.send("github", labeled(number=7))
        until(folder, Status.WAITING_APPROVAL)
        body, headers = signed("github", labeled(number=8))
        assert second.post("github", body, headers)[0] == 202
        assert first.post("github", body, headers) == (200, "it was taken before")
        until(folder, Status.WAITING_APPROVAL, "acme-app-8")
        first.process.kill()
        first.process.wait(timeout=20)
        second.send("github", comment("approve"))
        until(folder, Status.COMPLETE)
    assert calls(folder) == ["look", "ask"] * 2 + ["mend", "tell"]


FLOW = """---
id: tour
name: Tour
version: 1
---

```mermaid
flowchart TD
    look[Look] --> decide{{Is it right?}}
    decide -->|Ship it| mend[Mend]
    decide -->|drop| dropped((Dropped))
    mend --> done((Done))
```

### look
Look.

### mend
Mend.

### decide
---
options:
  - label: Ship it
  - label: drop
---
{{output}} Is it right?
"""


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("said", ["ship it", "perhaps"])
def test_a_question_of_a_flowchart_is_answered_by_an_option(
    folder: Path, tmp_path: Path, said: str
) -> None:
    (folder / "tour.md").write_text(FLOW, encoding="utf-8")
    settings = SETTINGS.replace("workflows:\n", "workflows:\n  tour: tour.md\n")
    (folder / "orchestration.yaml").write_text(settings, encoding="utf-8")
    with taking(folder, tmp_path / "state") as taker:
        taker.send("github", labeled())
        until(folder, Status.WAITING_APPROVAL)
        begin_flow_of_issue(folder)
        taker.send("github", comment(said))
        if said == "perhaps":
            taker.until("refused: ")
            head = head_of(folder, "acme-app-7-2")
            assert head is not None
            assert head.asks == ("decide",)
            return
        until(folder, Status.COMPLETE, "acme-app-7-2")
    assert calls(folder) == ["look", "ask", "look", "mend"]


def begin_flow_of_issue(folder: Path) -> None:
    """Make a run of the flowchart that belongs to the same issue, as a project's hook may."""
    variables = {**os.environ, "SEQUENCER_WORKFLOW__NAME": "tour"}
    project = open_project(folder, environment=variables, trust=True)
    definition = run_of(folder).definition
    assert definition is not None
    workflow = project.settings.registry.get("tour")
    run = project.run("acme-app-7-2", definition.replace(workflow=workflow))
    run.commands.start(definition.replace(workflow=workflow))
    with pytest.raises(WaitsForPerson):
        run.work()


def test_a_requested_run_that_does_not_exist_is_not_started(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    usual = f"workflow: {{name: fix}}\n{SETTINGS}"
    (folder / "orchestration.yaml").write_text(usual, encoding="utf-8")
    (folder / "hold-look").touch()
    with taking(folder, state) as taker:
        taker.send("github", labeled())
        wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    rows(state, "INSERT INTO wanted (run) VALUES ('gone')")
    (folder / "hold-look").unlink()
    with taking(folder, state):
        until(folder, Status.WAITING_APPROVAL)
        wait_for(lambda: not rows(state, "SELECT 1 FROM wanted WHERE run = 'gone'"), lambda: "gone")
    assert open_project(folder, trust=True).run_names() == [RUN]


@pytest.mark.slow
def test_a_run_killed_from_outside_is_continued_by_the_next_server(
    folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (folder / "hold-look").touch()
    with taking(folder, state) as taker:
        taker.send("github", labeled())
        wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
        head = head_of(folder)
        assert head is not None
        os.kill(head.claims[0].owner.pid, signal.SIGTERM)
        taker.until("work on run acme-app-7 ended with exit code 130")
    (folder / "hold-look").unlink()
    with taking(folder, state):
        until(folder, Status.WAITING_APPROVAL)
    assert calls(folder) == ["look", "look", "ask"]
