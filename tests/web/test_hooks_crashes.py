"""Deliveries of a tracker that arrive at the same time, or around the death of their server."""

from __future__ import annotations

import http.client
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sequencer import Status, open_project
from tests.web.deliveries import (
    RUN,
    Taker,
    calls,
    comment,
    event,
    facts,
    issue,
    labeled,
    rows,
    taking,
    until,
    wait_for,
)


def test_simultaneous_deliveries_start_one_run(taker: Taker, folder: Path) -> None:
    bot = {"login": "seq-bot", "id": 5}
    both = issue(assignees=[bot])
    sent = [labeled(issue=both), event("assigned", issue=both, assignee=bot)] * 4
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda one=one: answers.append(taker.send("github", one)[0]))
        for one in sent
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Equal bodies are one delivery.
    assert sorted(answers) == [200] * 6 + [202] * 2
    until(folder, Status.WAITING_APPROVAL)
    taker.until("already exists and continues")
    assert open_project(folder, trust=True).run_names() == [RUN]
    assert calls(folder) == ["look", "ask"]


CRASHES = ("take", "note", "want", "start", "begun", "drop")


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("place", CRASHES)
def test_a_killed_server_starts_a_run_exactly_once(
    folder: Path, tmp_path: Path, place: str
) -> None:
    state = tmp_path / "state"
    with taking_until_it_dies(folder, state, place) as taker:
        document = labeled()
        deliver(taker, document)
    with taking(folder, state) as taker:
        # Perhaps nobody was told that it was taken; then it is sent again.
        assert taker.send("github", document)[0] in (200, 202)
        until(folder, Status.WAITING_APPROVAL)
        wait_for(lambda: not waiting(state), lambda: taker.said)
    assert open_project(folder, trust=True).run_names() == [RUN]
    assert calls(folder) == ["look", "ask"]
    assert len(facts(folder, "initialised")) == 1


@pytest.mark.slow
def test_a_delivery_whose_keys_a_crash_lost_counts_once(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (folder / "hold-look").touch()
    with taking(folder, state) as taker:
        taker.send("github", labeled())
        wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    said = comment("mind the proxy")
    with taking_until_it_dies(folder, state, "take") as taker:
        deliver(taker, said)
    with taking(folder, state) as taker:
        taker.until("guidance by github:ann")
        wait_for(lambda: not waiting(state), lambda: taker.said)
        assert taker.send("github", said) == (200, "it was taken before")
        (folder / "hold-look").unlink()
        until(folder, Status.WAITING_APPROVAL)
    assert len(facts(folder, "told")) == 1


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("verb", ["approve", "look again"])
def test_a_killed_server_answers_exactly_once(folder: Path, tmp_path: Path, verb: str) -> None:
    state = tmp_path / "state"
    with taking(folder, state) as taker:
        taker.send("github", labeled())
        until(folder, Status.WAITING_APPROVAL)
        taker.until("ended with exit code 4")
    with taking_until_it_dies(folder, state, "drop") as taker:
        said = comment(verb)
        deliver(taker, said)
    with taking(folder, state) as taker:
        assert taker.send("github", said) == (200, "it was taken before")
        done = Status.COMPLETE if verb == "approve" else Status.WAITING_APPROVAL
        wait_for(lambda: not waiting(state), lambda: taker.said)
        until(folder, done)
    kind = "approved" if verb == "approve" else "feedback"
    assert len(facts(folder, kind)) == 1


@pytest.mark.slow
def test_guidance_is_recorded_once_although_the_server_was_killed(
    folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (folder / "hold-look").touch()
    with taking(folder, state) as taker:
        taker.send("github", labeled())
        wait_for(lambda: calls(folder) == ["look"], lambda: taker.said)
    with taking_until_it_dies(folder, state, "drop") as taker:
        said = comment("mind the proxy")
        deliver(taker, said)
    with taking(folder, state) as taker:
        assert taker.send("github", said) == (200, "it was taken before")
        taker.until("this was already done")
        (folder / "hold-look").unlink()
        until(folder, Status.WAITING_APPROVAL)
    assert len(facts(folder, "told")) == 1


def deliver(taker: Taker, document: dict[str, Any]) -> None:
    """Send *document* to a server that dies of it, perhaps before it has answered."""
    with suppress(OSError, http.client.HTTPException):
        assert taker.send("github", document) == (202, "taken")
    assert taker.process.wait(timeout=60) == -9


def waiting(state: Path) -> list[Any]:
    return rows(state, "SELECT id FROM deliveries WHERE done IS NULL")


KILLER = """
import os, signal, sys
from sequencer.engine.run_commands import RunCommands
from sequencer.plugins.web.webhooks import acting, deliveries

PLACES = {
    "take": (deliveries.DeliveryStore, "add_delivery", False),
    "note": (acting.DeliveryHandler, "_handle_delivery", True),
    "want": (deliveries.DeliveryStore, "add_wanted_run", False),
    "start": (RunCommands, "start", True),
    "begun": (RunCommands, "start", False),
    "drop": (deliveries.DeliveryStore, "finish", True),
}
owner, name, is_before = PLACES[os.environ["DIES_AT"]]
whole = getattr(owner, name)

def dies(*args, **kwargs):
    if not is_before:
        whole(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, dies)
from sequencer.cli import main
sys.argv = ["sequencer", *sys.argv[1:]]
main()
"""


def taking_until_it_dies(folder: Path, state: Path, place: str) -> Any:
    """Serve until the server kills itself at *place*."""
    script = state.with_name("killer.py")
    script.write_text(KILLER, encoding="utf-8")
    return taking(folder, state, program=(str(script),), DIES_AT=place)
