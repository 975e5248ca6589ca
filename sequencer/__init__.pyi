# The types of the library. At run time, __init__.py imports each name on its first use; imports
# for type checkers in there would make cycles with every module that imports the version.
from sequencer.cli.context import Invocation
from sequencer.cli.contributions import Contribution
from sequencer.engine import events
from sequencer.engine.hooking import HookContext
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.executors.cancellation import Cancellation, StopReason
from sequencer.executors.command import CommandExecutor, CommandOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import Executor, Identity, Listener, Piece, StepRequest
from sequencer.hooks.points import hookimpl
from sequencer.model import commands
from sequencer.model.graph.graph import Edge, Graph, Node, NodeKind
from sequencer.model.head import Claim, Head, Owner, Status
from sequencer.model.kind import AttemptResult, Capacity, CommandContext
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.order import find_step_ref, resolve
from sequencer.model.sequence.sequence_kind import (
    Continuation,
    ContinuationKind,
    SequenceChange,
    SequenceKind,
)
from sequencer.model.step import Retry, Step
from sequencer.model.transitions import Event, Fact, StepRef, Transition
from sequencer.model.workflow import Review, Workflow
from sequencer.project.diagnostics import Area, Diagnostic, Level
from sequencer.project.project import Project, open_project, open_run
from sequencer.project.runs import file_store
from sequencer.project.schema import Section
from sequencer.project.sections import ConfigSection
from sequencer.project.setting_checks import Check
from sequencer.project.settings import Settings
from sequencer.project.store_kinds import StoreKind
from sequencer.project.store_requests import CheckRequest, StoreRequest
from sequencer.store.file import FileStore
from sequencer.store.protocol import Change, Liveness, ReportsWaiting, Store, View

__all__ = [
    "Area",
    "AttemptResult",
    "Cancellation",
    "Capacity",
    "Change",
    "Check",
    "CheckRequest",
    "Claim",
    "CommandContext",
    "CommandExecutor",
    "CommandOptions",
    "ConfigSection",
    "Continuation",
    "ContinuationKind",
    "Contribution",
    "Decision",
    "Diagnostic",
    "Edge",
    "Event",
    "Executor",
    "Fact",
    "FileStore",
    "Graph",
    "Head",
    "HookContext",
    "Identity",
    "Invocation",
    "InvocationLimits",
    "Level",
    "Listener",
    "Liveness",
    "Mode",
    "Move",
    "Node",
    "NodeKind",
    "Outcome",
    "OutcomeStatus",
    "Owner",
    "Piece",
    "ProcessCore",
    "Project",
    "ReportsWaiting",
    "Retry",
    "Review",
    "Run",
    "RunLimits",
    "Section",
    "SequenceChange",
    "SequenceKind",
    "SequencerError",
    "Settings",
    "Status",
    "Step",
    "StepRef",
    "StepRequest",
    "StopReason",
    "Store",
    "StoreKind",
    "StoreRequest",
    "Transition",
    "Usage",
    "View",
    "Workflow",
    "commands",
    "events",
    "file_store",
    "find_step_ref",
    "hookimpl",
    "open_project",
    "open_run",
    "resolve",
]
__version__: str
