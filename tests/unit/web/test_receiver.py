"""What a receiver of webhooks takes, refuses and remembers, without a server around it."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sequencer import open_project
from sequencer.plugins.web import checks
from sequencer.plugins.web.site import Site
from sequencer.plugins.web.webhooks import acting, deliveries, receiver, uploads
from tests.web.deliveries import SECRET, comment, issue, labeled, make_project, signed
from tests.web.test_hooks_attacks import BODY_S, FREE_BYTES, MAX_BYTES, MIN_BYTES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a project that takes deliveries."""
    return make_project(tmp_path / "app")


@pytest.fixture
def alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> receiver.WebhookReceiver:
    """Return a receiver whose deliveries no handler acts on."""
    monkeypatch.setattr(acting.DeliveryHandler, "wake", lambda _: None)
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", SECRET)
    return receiver.WebhookReceiver(nobody, ["http://127.0.0.1"], Site([folder]), lambda _: None)


def project_key(made: receiver.WebhookReceiver) -> str:
    (handler,) = made._handlers
    return handler.shown.project.trust.key


async def nobody(*_: object) -> None:
    raise AssertionError("let through")


def ask(made: receiver.WebhookReceiver, sent: tuple[bytes, dict[str, str]]) -> int:
    """Deliver to *made*; return the status."""
    body, headers = sent
    found: list[dict[str, Any]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        found.append(message)

    pairs = [(k.encode(), v.encode()) for k, v in {**headers, "host": "127.0.0.1"}.items()]
    scope: dict[str, Any] = {"type": "http", "path": "/hooks/github", "method": "POST"}
    scope |= {"headers": pairs, "client": ("192.0.2.1", 1)}
    asyncio.run(made(scope, receive, send))
    return int(found[0]["status"])


def test_new_deliveries_over_the_limit_per_minute_are_refused(
    alone: receiver.WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MAX_PER_MINUTE", 3)
    sent = [signed("github", labeled(number=n)) for n in range(1, 6)]
    assert [ask(alone, one) for one in sent] == [202, 202, 202, 429, 429]
    # What was refused is not known: it can be sent again. What was taken is, also now.
    assert [ask(alone, one) for one in sent] == [200, 200, 200, 429, 429]
    assert ask(alone, signed("github", labeled("bug"))) == 200
    assert ask(alone, signed("github", labeled("bug"), secret=SECRET[::-1])) == 401
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert [ask(alone, one) for one in sent] == [200, 200, 200, 202, 202]


def test_deliveries_dated_in_the_future_by_a_wrong_clock_block_no_others(
    alone: receiver.WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MAX_PER_MINUTE", 1)
    now = time.time()
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: now + 10**9)
        assert deliveries.DeliveryStore(project_key(alone)).add_delivery(
            "github", "issues", b"1", b"{}"
        )
    assert ask(alone, signed("github", labeled())) == 202


def test_replays_block_no_honest_delivery(
    alone: receiver.WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MAX_PER_MINUTE", 60)
    captured = signed("github", labeled())
    assert ask(alone, captured) == 202
    assert {ask(alone, captured) for _ in range(56)} == {200}
    for number in range(4):
        assert ask(alone, signed("github", labeled("bug", number=number + 1))) == 200
    assert ask(alone, signed("github", comment("approve"))) == 202


@pytest.mark.parametrize("number", [True, -1, 0, 7.0, "7", None, 2**63])
def test_an_invalid_issue_number_does_nothing(
    alone: receiver.WebhookReceiver, number: object
) -> None:
    sent = signed("github", labeled(issue=issue(number=number)))  # type: ignore[arg-type]
    assert ask(alone, sent) == 200
    assert deliveries.DeliveryStore(project_key(alone)).find_oldest_waiting() is None


def test_health_shows_accepted_and_refused_deliveries(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting.DeliveryHandler, "wake", lambda _: None)
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", SECRET)
    monkeypatch.delenv("LINEAR_WEBHOOK_SECRET", raising=False)
    site = Site([folder])
    made = receiver.WebhookReceiver(nobody, ["http://127.0.0.1"], site, lambda _: None)
    for sent in (signed("github", labeled()), signed("github", labeled("bug"))):
        ask(made, sent)
    for _ in range(2):
        ask(made, signed("github", labeled(), secret=SECRET[::-1]))
    for number in range(40):
        made._count_refusal(f"{number}")
    assert len(site.refused) == receiver.MAX_REFUSED
    for sent in (signed("github", labeled("bug")), signed("github", {}, secret="x" * 20)):
        ask(made, sent)
    ((_, found),) = checks.build_health_page(site, {}).context["projects"]
    texts = [one.text for one in found]
    assert any(text.endswith("github: waits") for text in texts)
    assert any("refused: 200, nothing to do: this label" in text for text in texts)
    assert any(
        "401, the signature does not match any" in text and "(1 times)" in text for text in texts
    )
    assert any("LINEAR_WEBHOOK_SECRET is not set" in text for text in texts)


def test_a_full_box_refuses_deliveries(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MAX_WAITING", 2)
    monkeypatch.setattr(acting.DeliveryHandler, "wake", lambda _: None)
    monkeypatch.setenv("GITHUB_WEBHOOK_SECRET", SECRET)
    made = receiver.WebhookReceiver(nobody, ["http://127.0.0.1"], Site([folder]), lambda _: None)
    assert [ask(made, signed("github", labeled(number=n))) for n in range(1, 5)] == [
        202,
        202,
        503,
        503,
    ]


def test_a_delivery_is_remembered_as_long_as_it_may_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, other = deliveries.DeliveryStore("/a/project"), deliveries.DeliveryStore("/a/project")
    assert made.add_delivery("github", "issues", b"1", b"{}")
    delivery = made.find_oldest_waiting()
    assert delivery is not None
    made.finish(delivery, "done")
    assert not other.add_delivery("github", "issues", b"2", b"{}")
    assert not other.add_delivery("github", "issues", b"1", b"{ }")
    assert [one.body for one in other.list_newest(9)] == [""]
    later = time.time() + deliveries.KEPT_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert other.add_delivery("github", "issues", b"2", b"{}")
    assert [one.done for one in made.list_newest(9)] == [None]


@pytest.mark.parametrize(
    ("ended", "is_another"),
    [
        ("2026-11-26T12:00:00Z", False),
        ("2026-11-26T11:59:00Z", True),
        # Written by a clock that was ahead: by minutes, or by years.
        ("2026-11-26T18:00:00Z", False),
        ("2036-01-01T00:00:00Z", True),
        ("when?", False),
    ],
)
def test_an_end_years_away_makes_no_event_outdated(ended: str, *, is_another: bool) -> None:
    now = datetime(2026, 11, 26, 12, tzinfo=UTC)
    assert acting.is_later(now, ended, now) == is_another


def test_the_folders_of_deliveries_are_private_to_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder above the boxes holds the records of trust too: others may not write there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0o002)
    try:
        assert deliveries.DeliveryStore("/a/project").add_delivery("github", "issues", b"1", b"{}")
    finally:
        os.umask(before)
    folders = [one for one in (tmp_path / "state").rglob("*") if one.is_dir()]
    assert len(folders) == 3
    assert {stat.S_IMODE(one.stat().st_mode) for one in folders} == {0o700}
    shop = make_project(tmp_path / "shop")
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    refused = open_project(shop).trust.refusal()
    assert refused is not None
    assert "others" not in refused.message


def test_the_limits_are_those_that_the_attacks_exceed() -> None:
    limits = (uploads.MAX_BYTES, uploads.FREE_BYTES, uploads.MIN_BYTES, uploads.BODY_S)
    assert limits == (MAX_BYTES, FREE_BYTES, MIN_BYTES, BODY_S)
