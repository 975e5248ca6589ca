"""A key that the service refuses ends the client at once: its own tries again take minutes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli

CLIENT = f"""\
#!{sys.executable} -IS
import json, pathlib, sys, time
sys.stdin.read()
here = pathlib.Path(__file__).parent
for number, status in enumerate(json.loads((here / "answers").read_text()), 1):
    event = {{"type": "system", "subtype": "api_retry", "attempt": number, "max_retries": 10}}
    event |= {{"retry_delay_ms": 500, "error_status": status, "error": "authentication_failed"}}
    print(json.dumps(event), flush=True)
if (here / "waits").exists():
    time.sleep(120)
print(json.dumps({{"type": "result", "is_error": False, "result": "done", "total_cost_usd": 0}}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "p"
    made.mkdir()
    client = tmp_path / "client"
    client.write_text(CLIENT)
    client.chmod(0o755)
    settings = {
        "agent": {"default": "model"},
        "agents": {"model": {"kind": "claude", "program": str(client)}},
        "steps": [{"name": "main", "text": "Go on."}],
    }
    (made / "orchestration.yaml").write_text(json.dumps(settings))
    return made


def test_a_key_refused_twice_ends_the_client_with_a_login_hint(folder: Path) -> None:
    (folder.parent / "answers").write_text("[401, 401]")
    (folder.parent / "waits").touch()
    before = time.monotonic()
    ended = cli(folder, "run", "--max-steps", "1", timeout_s=110)
    assert time.monotonic() - before < 100
    assert ended.returncode == 1
    assert "has refused its key or login twice (HTTP 401)" in ended.stderr
    assert "log in: run 'claude' once" in ended.stderr


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize("answers", [[401], [401, 529, 401]])
def test_a_client_that_recovers_after_a_refusal_is_left_alone(
    folder: Path, answers: list[int]
) -> None:
    (folder.parent / "answers").write_text(json.dumps(answers))
    ended = cli(folder, "run", "--max-steps", "1")
    assert ended.returncode == 0, ended.stderr
