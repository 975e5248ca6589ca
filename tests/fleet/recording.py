"""Take down what workflows have decided: ``python -m tests.fleet.recording``, from a real server.

Done again only with another `EDITION`: see CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

from temporalio.client import Client

from sequencer.plugins.temporal.connection import Connection, FleetOptions
from sequencer.plugins.temporal.server import TrialServer
from tests.fleet.fleet_projects import AGENTS, CYCLE, FLOW, PROCEDURE, FleetProject
from tests.loopback import free_ports

FOLDER = Path(__file__).parents[1] / "data" / "fleet"
STORIES = {
    "cycle": (CYCLE, ["run --max-steps 3", "stop --pause", "resume", "tell more", "tick"]),
    "procedure": (
        PROCEDURE,
        ["run", "answer more", "run", "answer approve", "run --step-timeout 60", "rewind 1", "run"],
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
    port, ui_port = free_ports(2)
    options = FleetOptions("tests", address=f"127.0.0.1:{port}")
    with tempfile.TemporaryDirectory() as name, TrialServer(options, Path(name) / "s", ui_port):
        connection = Connection(options)
        for story, (configuration, commands) in STORIES.items():
            store = f'store: {{kind: temporal, address: "{options.address}", project: {story}}}'
            here = FleetProject(Path(name) / story, configuration, store)
            here.host = "here"
            if story == "review":
                (here.folder / "flows").mkdir()
                (here.folder / "flows" / "review.md").write_text(FLOW)
            for command in commands:
                ended = here.cli(*shlex.split(command))
                print(story, command, ended.returncode, ended.stderr[-200:])
            run = story if story == "review" else "default"
            for number, text in enumerate(connection.call(_histories(connection, story, run)), 1):
                (FOLDER / f"{story}-{number}.json").write_text(f"{text}\n")


async def _histories(connection: Connection, project: str, run: str) -> list[str]:
    client: Client = await connection.connect()
    asked = f"WorkflowId = 'seq/{project}/{run}'"
    found = [one async for one in client.list_workflows(asked)]
    found.sort(key=lambda one: one.start_time)
    whole = [
        await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history() for one in found
    ]
    return [re.sub(r"\s*\n\s*", "", one.to_json()) for one in whole]


if __name__ == "__main__":
    record()
    os._exit(0)
