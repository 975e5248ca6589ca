"""What a role brings is left out if an agent does not support it; what authors wrote stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.supported_fields import OF_A_FLOWCHART, drop_unsupported_fields
from sequencer.errors import ConfigurationError
from sequencer.model.graph.graph import Graph, Node, NodeKind
from sequencer.model.graph.task import TaskTraits
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.teams.options import builtin_roles
from sequencer.project.project import Project, open_project

AGENTS = """
agents:
  program: {kind: command, argv: [cat]}
  talker: {kind: command, argv: [cat, "{system_prompt}"]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "orchestration.yaml").write_text(AGENTS)
    return open_project(tmp_path, environment={})


def step(executor: str, **fields: Any) -> Step:
    return Step.model_validate({"name": "task", "text": "Do it", "executor": executor, **fields})


def as_role(name: str, executor: str) -> tuple[Step, tuple[str, ...]]:
    fields = builtin_roles()[name].step
    return step(executor, **fields), tuple(fields)


@pytest.mark.parametrize("executor", ["program", "talker", "claude", "gemini", "opencode", "codex"])
@pytest.mark.parametrize("role", list(builtin_roles()))
def test_every_role_fits_every_client(project: Project, role: str, executor: str) -> None:
    one, brought = as_role(role, executor)
    found, _ = drop_unsupported_fields(project.agents, one, "task", brought)
    assert project.agents.choose(found, "task")[0] == executor


def test_only_the_unsupported_tools_are_left_out(project: Project) -> None:
    # codex reads with its shell, and its sandbox keeps it from writing.
    one, brought = as_role("researcher", "codex")
    found, lost = drop_unsupported_fields(project.agents, one, "task", brought)
    assert lost == ("tools.bash",)
    assert found.tools is not None
    assert (found.tools["write"], found.tools["edit"], found.tools["read"]) == (False, False, True)


def test_unsupported_fields_of_a_fixer_are_left_out_too(project: Project) -> None:
    fixer = {"name": "mend", "executor": "program", "tools": {"bash": True}, "max_turns": 2}
    one = step("program", validation={"fixer": fixer})
    found, lost = drop_unsupported_fields(project.agents, one, "task", ("fixer.tools",))
    assert lost == ("fixer.tools",)
    assert found.validation is not None
    assert found.validation.fixer is not None
    assert (found.validation.fixer.tools, found.validation.fixer.max_turns) == (None, 2)


def test_an_unknown_agent_is_an_error(project: Project) -> None:
    with pytest.raises(ConfigurationError, match="nobody"):
        drop_unsupported_fields(project.agents, step("nobody"), "task", ("tools",))


def graph_of(*steps: Step, has_tasks: bool = False, **tasks: TaskTraits) -> Workflow:
    nodes = tuple(Node(id=one.name, kind=NodeKind.AGENT, task=tasks.get(one.name)) for one in steps)
    graph = Graph(nodes=nodes, entries=(steps[0].name,), is_team=has_tasks)
    return Workflow("demo", steps, kind="graph", graph=graph)


def test_a_temperature_that_is_too_high_for_the_agent_is_left_out(project: Project) -> None:
    one = step("anthropic", temperature=1.5)
    assert drop_unsupported_fields(project.agents, one, "node", OF_A_FLOWCHART)[1] == (
        "temperature",
    )
    mild = step("anthropic", temperature=0.5)
    assert drop_unsupported_fields(project.agents, mild, "node", OF_A_FLOWCHART) == (mild, ())
