"""Deliveries that were taken are acted on, whatever was in the way for a while."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sequencer import open_project
from sequencer.plugins.web.site import ShownProject
from sequencer.plugins.web.webhooks import acting
from sequencer.plugins.web.webhooks.acting import DeliveryHandler
from sequencer.store import watch
from tests.web.deliveries import labeled, make_project


def soon(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeliveryHandler:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(acting, "PAUSE_S", 0.05)
    monkeypatch.setattr(DeliveryHandler, "_begin_runs", lambda _: None)
    project, said = open_project(make_project(tmp_path / "p"), trust=True), list[str]()
    shown: Any = SimpleNamespace(project=project, open_for_change=lambda: project, title="p")
    return DeliveryHandler(cast("ShownProject", shown), said.append)


def take(handler: DeliveryHandler, number: int) -> None:
    body = json.dumps(labeled(number=number)).encode()
    assert handler.deliveries.add_delivery("github", "issues", str(number).encode(), body)
    handler.wake()


def test_deliveries_are_processed_without_file_notifications(
    handler: DeliveryHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(watch, "InotifyWatch", none_left)
    for number in (1, 2):
        take(handler, number)
        soon(lambda: handler.deliveries.find_oldest_waiting() is None)
    assert len(handler.deliveries.list_newest(9)) == 2


def test_deliveries_wait_while_the_box_cannot_be_used(handler: DeliveryHandler) -> None:
    lock = handler.deliveries.path / "worker.lock"
    lock.mkdir(parents=True)
    take(handler, 1)
    time.sleep(0.3)
    assert handler.deliveries.find_oldest_waiting() is not None
    lock.rmdir()
    soon(lambda: handler.deliveries.find_oldest_waiting() is None)
