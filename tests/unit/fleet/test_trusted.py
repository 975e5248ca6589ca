"""A worker makes only what this machine's person has trusted, whatever stands on the server."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("temporalio", reason="the extra 'fleet' is not installed")

from sequencer.errors import (
    CorruptState,
    DefinitionChanged,
    NotTrusted,
    SequencerError,
    UnsafePath,
    UsageRefused,
)
from sequencer.model.graph.source import FlowSource
from sequencer.model.head import FLOW_DOCUMENT, Head
from sequencer.model.request import DEFINITION_FILE, Definition, Request
from sequencer.model.sequence.sequence_kind import SequenceKind
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.temporal.client import FleetStore
from sequencer.plugins.temporal.events import RunSeen
from sequencer.plugins.temporal.remote_run import RemoteRun
from sequencer.plugins.temporal.wire import FACTS, pack_head
from sequencer.plugins.temporal.worker import Workers
from sequencer.project.project import open_project
from tests.fleet.fleet_projects import AGENTS, FLOW, FleetProject

STORE = 'store: {kind: temporal, address: "127.0.0.1:1", project: shop}'


class Machine:
    """A project that a person has trusted, and a server that says whatever a test wants."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        self.folder = folder / "shop"
        FleetProject(self.folder, AGENTS + "workflow: {name: standard}\n", STORE)
        self.seen: dict[str, RunSeen] = {}
        open_project(self.folder).trust.save_record()

        async def described(store: FleetStore) -> RunSeen | None:
            return self.seen.get(store.id)

        monkeypatch.setattr(RemoteRun, "fetch_description", described)

    def says(self, run: str, head: Head, **documents: str) -> None:
        """Let the server say that *run* has this *head* and these *documents*."""
        kept = {"flow": FLOW_DOCUMENT, "definition": DEFINITION_FILE}
        memo: dict[str, Any] = {**pack_head(head.replace(revision=1)), FACTS: []}
        memo |= {kept[name]: text for name, text in documents.items()}
        self.seen[run] = RunSeen(memo, "x", is_open=True, queue="seq/shop@1", pending={})

    def worker(self, run: str) -> Any:
        """Return who would make attempts at *run* here."""
        store = open_project(self.folder).store(None)
        assert isinstance(store, FleetStore)
        return Workers(store).find_worker(run)[0]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def head_of(machine: Machine, name: str | None = None, workflow: Workflow | None = None) -> Head:
    """Return the head of a run of the project's own workflow, or of another one."""
    own = open_project(machine.folder).settings.registry.get("standard")
    return (
        SequenceKind(workflow or own)
        .create_head("run-1", at=datetime.now(UTC))
        .replace(run_name=name)
    )


def requested(*steps: Step) -> tuple[Workflow, str]:
    """Return a workflow that was made from a request, and the document that says so."""
    workflow = Workflow("fix", steps, kind="procedure")
    made = Definition(
        created_at="2026-01-02T03:04:05Z",
        request=Request(title="t"),
        route={},
        workflow=workflow,
    )
    return workflow, made.to_json().decode()


def test_a_trusted_project_gets_a_worker(machine: Machine) -> None:
    machine.says("seq/shop/default", head_of(machine))
    assert machine.worker("seq/shop/default").performer.workflow.name == "standard"


@pytest.mark.parametrize("change", ["argv", "agent", "nobody"])
def test_a_project_changed_since_it_was_trusted_gets_no_worker(
    machine: Machine, change: str
) -> None:
    machine.says("seq/shop/default", head_of(machine))
    store = open_project(machine.folder).store(None)
    assert isinstance(store, FleetStore)
    config = machine.folder / "orchestration.yaml"
    if change == "argv":
        config.write_text(config.read_text().replace("-IS", "-I"))
    elif change == "agent":
        (machine.folder / "agent.py").write_text("print('other')\n")
    else:
        for record in (machine.folder.parent / "state").rglob("*.json"):
            record.unlink()
    with pytest.raises(NotTrusted):
        Workers(store).find_worker("seq/shop/default")


def test_a_run_with_another_definition_is_left_to_other_workers(machine: Machine) -> None:
    other = Workflow("standard", (Step(name="supervisor"), Step(name="main", model="big")))
    machine.says("seq/shop/default", head_of(machine, workflow=other))
    with pytest.raises(DefinitionChanged):
        machine.worker("seq/shop/default")


@pytest.mark.parametrize(
    ("run", "name"),
    [
        ("seq/other/default", None),
        ("seq/shop/nightly", None),
        ("seq/shop/default", "nightly"),
        ("seq/shop/x", "../../x"),
        ("seq/shop/../x", "../x"),
    ],
)
def test_a_run_that_claims_to_be_another_is_not_touched(
    machine: Machine, run: str, name: str | None
) -> None:
    machine.says(run, head_of(machine, name))
    with pytest.raises(CorruptState, match="says that it is"):
        machine.worker(run)


@pytest.mark.parametrize(
    "granted",
    [{"allowed_tools": ("Bash",)}, {"tools": {"bash": True}},
     {"agents": {"a": {"description": "d", "prompt": "p", "tools": ("Bash",)}}}],
)  # fmt: skip
def test_tools_the_project_does_not_grant_are_refused(
    machine: Machine, granted: dict[str, Any]
) -> None:
    step = Step.model_validate({"name": "main", **granted})
    workflow, text = requested(step)
    head = head_of(machine, "one", workflow).replace(has_definition=True)
    machine.says("seq/shop/one", head, definition=text)
    with pytest.raises(UsageRefused, match="tools that no workflow of this project gives"):
        machine.worker("seq/shop/one")
    # Where the person has trusted a workflow that gives them, the run may as well.
    config = machine.folder / "orchestration.yaml"
    given = {key: list(one) if isinstance(one, tuple) else one for key, one in granted.items()}
    own = f"workflows: {{mine: {{kind: procedure, steps: [{{name: main, {_flow(given)}}}]}}}}\n"
    config.write_text(config.read_text() + own)
    open_project(machine.folder).trust.save_record()
    assert machine.worker("seq/shop/one").performer.workflow == workflow


def _flow(value: dict[str, Any]) -> str:
    return json.dumps(value)[1:-1]


def test_an_agent_known_only_to_the_run_is_not_run(machine: Machine) -> None:
    workflow, text = requested(Step(name="main", agent="evil"))
    head = head_of(machine, "one", workflow).replace(has_definition=True)
    machine.says("seq/shop/one", head, definition=text)
    worker = machine.worker("seq/shop/one")
    with pytest.raises(SequencerError, match="evil"):
        worker.performer.prepare(worker.kind.check_readiness(head, worker.limits, at=None).place)


@pytest.mark.parametrize("place", ["../evil.md", "{tmp}/evil.md", "flows/link.md"])
def test_a_workflow_outside_of_the_project_is_not_read(machine: Machine, place: str) -> None:
    outside = machine.folder.parent / "evil.md"
    outside.write_text(FLOW)
    (machine.folder / "flows").mkdir()
    (machine.folder / "flows" / "link.md").symlink_to(outside)
    _says_flow(machine, place.replace("{tmp}", str(machine.folder.parent)), FLOW)
    with pytest.raises(UnsafePath):
        machine.worker("seq/shop/review")


def test_tools_granted_by_a_workflow_anywhere_in_the_project_need_trust(machine: Machine) -> None:
    (machine.folder / "docs").mkdir()
    granting = FLOW.replace("### draft\n", "### draft\n---\nallowed_tools: [Bash]\n---\n")
    (machine.folder / "docs" / "x.md").write_text(granting)
    _says_flow(machine, "docs/x.md", granting)
    with pytest.raises(NotTrusted):
        machine.worker("seq/shop/review")


def _says_flow(machine: Machine, file: str, text: str) -> None:
    scratch = machine.folder.parent / "scratch.md"
    scratch.write_text(text)
    workflow = open_project(machine.folder).settings.registry.load(scratch).workflow
    source = FlowSource(file=file, workflow=workflow).to_json().decode()
    head = head_of(machine, "review", workflow)
    machine.says("seq/shop/review", head, flow=source)
