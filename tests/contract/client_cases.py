"""The executors of real clients in the contract suite.

The command-line clients are played by the scripts in tests/fake_clients, the Messages API
by a server on the loopback address.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sequencer import Executor
from sequencer.testing import ScratchProject
from tests.contract.executor_cases import Behaviour, ExecutorCase
from tests.fake_model_server import fake_model

FAKE_CLIENTS = Path(__file__).parents[1] / "fake_clients"
CLIENTS = ("claude", "codex", "gemini", "opencode")
_PRICES = {"m1": {"input": 1.0, "output": 2.0}}


@contextmanager
def agent_of(folder: Path, entry: Mapping[str, Any]) -> Iterator[Executor]:
    """Yield the agent that a project in *folder* has by this *entry* of its ``agents:``."""
    project = ScratchProject(folder, {"agent": "one", "agents": {"one": dict(entry)}}, prompts={})
    with closing(project.open().agents) as agents:
        yield agents.build("one")


def _client(name: str) -> ExecutorCase:
    def build(behaviour: Behaviour, folder: Path) -> AbstractContextManager[Executor]:
        plan = folder / "plan.json"
        plan.write_text(json.dumps(vars(behaviour)))
        # The python of the tests, whatever python3 is on PATH.
        path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        env = {"FAKE_CLIENT_PLAN": str(plan), "PATH": path}
        return agent_of(folder, {"kind": name, "program": str(FAKE_CLIENTS / name), "env": env})

    return ExecutorCase(name=name, build=build)


@contextmanager
def _anthropic(behaviour: Behaviour, folder: Path) -> Iterator[Executor]:
    turn: dict[str, Any] = {"text": behaviour.answer, "hang": behaviour.delay_s}
    if behaviour.fails:
        turn["error"] = 400
    with fake_model() as model, pytest.MonkeyPatch.context() as variables:
        variables.setenv("ANTHROPIC_API_KEY", "dummy")
        model.unscripted = turn
        entry = {"kind": "anthropic", "model": "m1", "prices": _PRICES, "base_url": model.url}
        with agent_of(folder, entry) as executor:
            yield executor


CLIENT_CASES = [
    *map(_client, CLIENTS),
    ExecutorCase(name="anthropic", build=_anthropic, has_process=False),
]
