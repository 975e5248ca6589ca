# The types of the library. At run time, __init__.py imports each name on its first use; imports
# for type checkers in there would make cycles with every module that imports the version.
from sequencer.engine.hooking import HookContext
from sequencer.engine.invocation_budget import Mode
from sequencer.engine.run import Run
from sequencer.errors import SequencerError
from sequencer.executors.protocol import Executor
from sequencer.hooks.points import hookimpl
from sequencer.model import commands
from sequencer.model.head import Head, Status
from sequencer.model.limits import InvocationLimits
from sequencer.model.outcome import Decision, Move, Outcome, OutcomeStatus, Usage
from sequencer.model.sequence.order import resolve
from sequencer.model.step import Step
from sequencer.model.workflow import Review, Workflow
from sequencer.project.project import open_project, open_run
from sequencer.store.protocol import Store

__all__ = [
    "Decision",
    "Executor",
    "Head",
    "HookContext",
    "InvocationLimits",
    "Mode",
    "Move",
    "Outcome",
    "OutcomeStatus",
    "Review",
    "Run",
    "SequencerError",
    "Status",
    "Step",
    "Store",
    "Usage",
    "Workflow",
    "commands",
    "hookimpl",
    "open_project",
    "open_run",
    "resolve",
]
__version__: str
