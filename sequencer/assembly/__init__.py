"""From settings to a run that works: the only package that knows every concrete class."""

from sequencer.assembly.agents import EXECUTORS, ConfiguredAgents, ensure_honoured
from sequencer.assembly.project import Project, open_project, open_run
from sequencer.assembly.stores import STORES, make_store, state_path_of
from sequencer.assembly.workflows import workflow_for

__all__ = [
    "EXECUTORS",
    "STORES",
    "ConfiguredAgents",
    "Project",
    "ensure_honoured",
    "make_store",
    "open_project",
    "open_run",
    "state_path_of",
    "workflow_for",
]
