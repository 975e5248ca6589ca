"""A Messages API executor in front of a fake model, for the tests of both halves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sequencer.executors.cancellation import Cancellation
from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.process import ProcessCore
from sequencer.model.outcome import Outcome
from sequencer.model.step import Step
from tests.contract.executor_cases import Recorder, request_for
from tests.fake_model_server import FakeModel

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PRICES = {"m1": {"input": 1.0, "output": 2.0}}
USAGE = {"input_tokens": 100_000, "output_tokens": 50_000}
"""0.2 USD at these prices."""


class Desk:
    """One executor in front of one fake model, in a folder of its own."""

    def __init__(self, model: FakeModel, folder: Path, core: ProcessCore) -> None:
        self.model = model
        self.folder = folder
        self.heard = Recorder()
        self.cancellation = Cancellation()
        self._core = core

    def executor(self, **entry: Any) -> MessagesExecutor:
        options = MessagesOptions.model_validate(
            {"model": "m1", "prices": PRICES, "base_url": self.model.url, **entry}
        )
        environ = {"ANTHROPIC_API_KEY": "dummy-key", "PATH": "/usr/bin:/bin"}
        return MessagesExecutor("api", options, self._core, environ=environ, clock=lambda: NOW)

    def ask(
        self,
        script: list[dict[str, Any]],
        *,
        entry: dict[str, Any] | None = None,
        step: dict[str, Any] | None = None,
        **request: Any,
    ) -> Outcome:
        prompt = f"Do it. <<fake {json.dumps(script)}>>"
        made = request_for(
            self.folder, step=Step(name="main", **step or {}), prompt=prompt, **request
        )
        return self.executor(**entry or {}).perform(made, self.heard, self.cancellation)
