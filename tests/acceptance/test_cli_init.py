from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.acceptance.cli_process import cli, head


@pytest.mark.slow
def test_an_empty_folder_becomes_a_project_that_runs(tmp_path: Path) -> None:
    made = cli(tmp_path, "init")
    assert made.returncode == 0, made.stderr
    config = tmp_path / "orchestration.yaml"
    agents = "agents:\n  echo: {kind: command, argv: [cat]}\n"
    text = re.sub(r"(?m)^agent: \w+", "agent: echo", config.read_text())
    config.write_text("\n".join(_without_agents(text)) + "\n" + agents)
    checked = cli(tmp_path, "check")
    assert checked.returncode == 0, checked.stdout
    ran = cli(tmp_path, "run", "--max-steps", "8")
    assert ran.returncode == 0, ran.stderr
    logs = sorted(path.name for path in (tmp_path / "logs" / "local" / "steps").iterdir())
    assert logs == [
        "iter-00001_supervisor.log",
        "iter-00002_main.log",
        "iter-00003_supervisor.log",
        "iter-00004_main.log",
        "iter-00005_reviewer.log",
        "iter-00006_reviewer.log",
        "iter-00007_supervisor.log",
        "iter-00008_main.log",
    ]
    assert head(tmp_path)["step_index"] == 8
    facts = [json.loads(line) for line in cli(tmp_path, "history", "--json").stdout.splitlines()]
    done = [fact["event"] for fact in facts if fact["event"] in ("claimed", "succeeded")]
    assert len(done) == 16


def _without_agents(text: str) -> list[str]:
    """Return the lines of a configuration without the entries below ``agents:``."""
    kept, is_below = [], False
    for line in text.splitlines():
        is_below = line == "agents:" or (is_below and line.startswith((" ", "\t")))
        if not is_below:
            kept.append(line)
    return kept


def test_a_second_init_changes_nothing(tmp_path: Path) -> None:
    cli(tmp_path, "init")
    cli(tmp_path, "run", "--agent", "rehearsal", "--max-steps", "2")

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = content()
    again = cli(tmp_path, "init")
    assert again.returncode == 0
    assert "created" not in again.stdout
    assert content() == before


def test_a_project_of_the_older_program_continues_where_it_was(tmp_path: Path) -> None:
    config = "supervisor_prompt: supervisor.md\nmain_prompt: main.md\ntmp_dir: tmp\n"
    (tmp_path / "orchestration.yaml").write_text(config)
    (tmp_path / "sync").mkdir()
    old = '{"iteration": 3, "expected_actor": "ralph", "status": "waiting-ralph"}'
    (tmp_path / "sync" / "state.json").write_text(old)
    assert cli(tmp_path, "init").returncode == 0
    assert (tmp_path / "orchestration.yaml").read_text() == config
    ran = cli(tmp_path, "run", "--agent", "rehearsal", "--max-steps", "1")
    assert ran.returncode == 0, ran.stderr
    assert head(tmp_path)["step_index"] == 6
    assert (tmp_path / "sync" / "state.json.before-migration").read_text() == old
