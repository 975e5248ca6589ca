"""A delivery that is acted on again, because its start failed, has its request classified once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sequencer import Head, open_project
from sequencer.engine.run_commands import RunCommands
from sequencer.errors import StorageFailed
from sequencer.model.request import Definition
from sequencer.plugins.web.site import ShownProject
from sequencer.plugins.web.webhooks import acting
from sequencer.plugins.web.webhooks.acting import DeliveryHandler
from tests.acceptance.charging import calls_of, charged_project, counted
from tests.web.deliveries import RUN, labeled
from tests.web.test_hook_costs import ASKED_TWICE, HOOKS


@pytest.mark.parametrize("tries", [3, 99])
def test_a_retried_delivery_is_classified_once(
    tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(acting, "PAUSE_S", 0.0)
    monkeypatch.setattr(DeliveryHandler, "_request_work", lambda *_: None)
    failures = [StorageFailed("no room")] * tries
    start = RunCommands.start

    def refusing(self: RunCommands, definition: Definition) -> Head:
        if failures:
            raise failures.pop()
        return start(self, definition)

    monkeypatch.setattr(RunCommands, "start", refusing)
    folder = charged_project(tmp_path / "p", ASKED_TWICE, **HOOKS)
    project, said = open_project(folder, trust=True), list[str]()
    shown: Any = SimpleNamespace(project=project, open_for_change=lambda: project)
    handler = DeliveryHandler(cast("ShownProject", shown), said.append)
    assert handler.deliveries.add_delivery("github", "issues", b"1", json.dumps(labeled()).encode())
    assert handler._handle_next()
    assert len(calls_of(folder)) == 2
    (told,) = said
    if tries < acting.TRIES:
        views = counted(folder, RUN)
        assert views == dict.fromkeys(views, (0.5, 1))
    else:
        assert "given up: no room; classifying the request cost" in told
        assert "0.5000 USD and 1 call of unknown cost" in told
