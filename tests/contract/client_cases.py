"""The executors of real clients in the contract suite.

The command-line clients are played by the scripts in tests/fake_clients, the Messages API
by a server on the loopback address.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sequencer import Executor, ProcessCore
from sequencer.executors.claude import ClaudeExecutor, ClaudeOptions
from sequencer.executors.codex import CodexExecutor, CodexOptions
from sequencer.executors.gemini import GeminiExecutor, GeminiOptions
from sequencer.executors.messages_api import MessagesExecutor
from sequencer.executors.messages_loop import MessagesOptions
from sequencer.executors.opencode import OpencodeExecutor, OpencodeOptions
from tests.contract.executor_cases import Behaviour, ExecutorCase
from tests.fake_model_server import fake_model

FAKE_CLIENTS = Path(__file__).parents[1] / "fake_clients"
_PRICES = {"m1": {"input": 1.0, "output": 2.0}}

Made = Callable[[dict[str, Any], ProcessCore], Executor]


def _client(name: str, made: Made) -> ExecutorCase:
    @contextmanager
    def build(behaviour: Behaviour, folder: Path) -> Iterator[Executor]:
        plan = folder / "plan.json"
        plan.write_text(json.dumps(vars(behaviour)))
        # The python of the tests, whatever python3 is on PATH.
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        env = {"FAKE_CLIENT_PLAN": str(plan), "PATH": path}
        entry = {"program": str(FAKE_CLIENTS / name), "env": env}
        with ProcessCore() as core:
            yield made(entry, core)

    return ExecutorCase(name=name, build=build)


@contextmanager
def _anthropic(behaviour: Behaviour, _folder: Path) -> Iterator[Executor]:
    turn: dict[str, Any] = {"text": behaviour.answer, "hang": behaviour.delay_s}
    if behaviour.fails:
        turn["error"] = 400
    with fake_model() as model, ProcessCore() as core:
        model.unscripted = turn
        options = MessagesOptions.model_validate(
            {"model": "m1", "prices": _PRICES, "base_url": model.url}
        )
        yield MessagesExecutor("api", options, core, environ={"ANTHROPIC_API_KEY": "dummy"})


CLIENT_CASES = [
    _client("claude", lambda e, c: ClaudeExecutor("c", ClaudeOptions.model_validate(e), c)),
    _client("codex", lambda e, c: CodexExecutor("c", CodexOptions.model_validate(e), c)),
    _client("gemini", lambda e, c: GeminiExecutor("c", GeminiOptions.model_validate(e), c)),
    _client("opencode", lambda e, c: OpencodeExecutor("c", OpencodeOptions.model_validate(e), c)),
    ExecutorCase(name="anthropic", build=_anthropic, has_process=False),
]
