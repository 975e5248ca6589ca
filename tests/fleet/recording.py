"""Take down what workflows have decided: ``python -m tests.fleet.recording``, from a real server.

Done again only with another `EDITION`: see CONTRIBUTING.md.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import tempfile
from pathlib import Path

from temporalio.client import Client

from tests.fleet.fleet_projects import AGENTS, CYCLE, FLOW, PROCEDURE, FleetProject
from tests.fleet.server import TemporalServer, executions

FOLDER = Path(__file__).parents[1] / "data" / "fleet"
STORIES = {
    "cycle": (CYCLE, ["run --max-steps 3", "stop --pause", "resume", "tell more", "tick"]),
    "procedure": (
        PROCEDURE,
        [
            "run",
            "answer feedback more",
            "run",
            "answer approve",
            "run --step-timeout 60",
            "rewind 1",
            "run",
        ],
    ),
    "failing": (
        AGENTS.replace("agent.py]", "missing.py]")
        + "step_defaults: {retry: {max_attempts: 2, initial_delay_s: 0.1}}\n"
        "workflow: {name: standard}\n",
        ["run --max-steps 3", "skip", "retry", "run --max-steps 1"],
    ),
    "review": (
        AGENTS,
        [
            "run flows/review.md --max-parallel 2",
            "--run review answer fine 'send back'",
            "run flows/review.md",
            "--run review answer fine approve",
            "run flows/review.md",
        ],
    ),
}


def record() -> None:
    """Write the history of each story's executions."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, TemporalServer(Path(name) / "s") as server:
        for story, (configuration, commands) in STORIES.items():
            store = f'store: {{kind: temporal, address: "{server.address}", project: {story}}}'
            here = FleetProject(Path(name) / story, configuration, store)
            here.host = "here"
            if story == "review":
                (here.folder / "flows").mkdir()
                (here.folder / "flows" / "review.md").write_text(FLOW)
            for command in commands:
                ended = here.cli(*shlex.split(command))
                print(story, command, ended.returncode, ended.stderr[-200:])
            run = story if story == "review" else "default"
            histories = asyncio.run(_histories(server.address, f"seq/{story}/{run}"))
            for number, text in enumerate(histories, 1):
                (FOLDER / f"{story}-{number}.json").write_text(f"{text}\n")


async def _histories(address: str, run: str) -> list[str]:
    client = await Client.connect(address)
    whole = [
        await client.get_workflow_handle(run, run_id=one.run_id).fetch_history()
        for one in await executions(client, run)
    ]
    return [re.sub(r"\s*\n\s*", "", one.to_json()) for one in whole]


if __name__ == "__main__":
    record()
