"""What a program with strict types gets of ``import sequencer``, and sees of its objects."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sequencer
from sequencer.errors import ConfigurationError
from tests.project.documents import ROOT

STUB = ROOT / "sequencer/__init__.pyi"
PROGRAM = """
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import sequencer
from sequencer import commands, Decision, Executor, Head, HookContext, InvocationLimits
from sequencer import Mode, Move, Outcome, OutcomeStatus, Status, Usage
from sequencer import Review, Run, SequencerError, Step, Store, Workflow, hookimpl
from sequencer import open_project, open_run, resolve
from sequencer import Cancellation, Identity, Listener, Piece, ProcessCore, StepRequest, StopReason
from sequencer import Capacity, CommandContext, events
from sequencer import CheckRequest, Claim, Event, Fact, FileStore, Liveness, Owner, Transition, View
from sequencer import Change, ReportsWaiting, StoreKind, StoreRequest, file_store
from sequencer import AttemptResult, Check, CommandExecutor, CommandOptions, Continuation
from sequencer import Invocation, Project, SequenceChange, Settings
from sequencer import ContinuationKind, SequenceKind, StepRef, find_step_ref
from sequencer import Edge, Graph, Node, NodeKind, Retry, RunLimits
from sequencer import Area, ConfigSection, Contribution, Diagnostic, Level, Section


def identity_of(request: StepRequest) -> tuple[str, int]:
    identity: Identity = request.identity
    return identity.step, identity.token


def show(event: events.RunEvent) -> None:
    if isinstance(event, events.NoticeGiven):
        print(event.text)


def slots_of(capacity: Capacity) -> int:
    return capacity.slots


def person_of(context: CommandContext) -> str:
    return context.by


def code_of(error: SequencerError) -> int:
    return error.exit_code


def worked(run: Run) -> str:
    summary = run.work(Mode.COMBINED, InvocationLimits(max_steps=2))
    return f"{summary.reason} {summary.usage.steps}"


def turned(run: Run) -> int:
    with run.turn("plan", wait=True) as turn:
        turn.output = turn.prompt_name
    head: Head | None = run.head
    return 0 if head is None else head.step_index


@hookimpl
def sequencer_transition(context: HookContext, outcome: Outcome) -> Decision | None:
    return Decision(Move.COMPLETE, reason=outcome.output or context.workflow)


def kept_in(store: Store) -> Path:
    return store.state_path


def cost_of(outcome: Outcome) -> float:
    usage: Usage = outcome.usage
    return 0.0 if outcome.status is OutcomeStatus.INTERRUPTED else usage.cost_usd


def has_failed(run: Run) -> bool:
    return run.head is not None and run.head.status == Status.FAILED


def kind_of(executor: Executor) -> str:
    return executor.kind


class Echo:
    kind: ClassVar[str] = "echo"
    supported_fields: frozenset[str] = frozenset()

    def problems(self) -> list[str]:
        return []

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        listener.write(b"done", Piece.OUTPUT)
        stopped = cancellation.reason is StopReason.INTERRUPTED
        return Outcome(status=OutcomeStatus.INTERRUPTED if stopped else OutcomeStatus.OK)


def echo(name: str, options: dict[str, object], core: ProcessCore) -> Executor:
    return Echo()


class Shell(CommandExecutor):
    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        return super().perform(request, listener, cancellation).replace(output="")


def shell(name: str, options: dict[str, str], core: ProcessCore) -> Executor:
    return Shell(name, CommandOptions(argv=("sh", options["script"])), core)


class Loud(FileStore):
    def update(self, change: Change) -> Head:
        return super().update(change)


def make(request: StoreRequest) -> Store:
    return file_store(request, request.state_path.parent / "x/state.json", kind=Loud)


def checks(request: CheckRequest) -> Iterator[Diagnostic]:
    waits = isinstance(request.store, ReportsWaiting)
    yield Diagnostic(Level.NOTICE, Area.FILES, "waits" if waits else "does not wait")


def notices(view: View) -> tuple[str, ...]:
    return view.notices


def owners(head: Head) -> list[Owner]:
    return [claim.owner for claim in head.claims if claim.owner.pid]


def is_gone(store: Store, claim: Claim) -> bool:
    return store.liveness(claim) is Liveness.DEAD


def accepted(transition: Transition) -> list[Fact]:
    return [fact for fact in transition.facts if fact.event == Event.SUCCEEDED]


class Patient(SequenceKind):
    def again(self, step_index: int) -> tuple[StepRef, ContinuationKind]:
        return find_step_ref(self.workflow, step_index), ContinuationKind.ACCEPT


    def judge(self, head: Head, ended: AttemptResult, max_attempts: int) -> AttemptResult:
        ending: Continuation | None = super().judge(head, ended, max_attempts).ending
        return ended if ending is None else super().judge(head, ended, max_attempts)


def revision_of(change: SequenceChange) -> Head:
    return change.head


def folder_of(invocation: Invocation) -> Path:
    project: Project = invocation.project()
    settings: Settings = project.settings
    return settings.prompts_dir


def find_problems(value: object, check: Check) -> Iterator[str]:
    yield check.format_location(("person",))


class Person(Section):
    name: str = "no one"


STEPS = (Step(name="a", retry=Retry(max_attempts=2)), Step(name="b"))
NODES = tuple(Node(id=step.name, kind=NodeKind.AGENT) for step in STEPS)
CHART = Graph(nodes=NODES, edges=(Edge(source="a", target="b"),), entries=("a",))
LIMITS = RunLimits(cost_usd=5.0)
STORE = StoreKind("loud", make, checks=checks)
PERSON = ConfigSection(Person, Person)
SHOWN = Contribution("shown", "shown:show", takes=("shown",))
WORKFLOW = Workflow("demo", (Step(name="a"),), Review(every=2, step=Step(name="b")))
NAME: str = resolve(WORKFLOW, 0).name
RUN: Run = open_run(".", "nightly", trust=True, config=Path("orchestration.yaml"))
OTHER: Run = open_project(".").run("nightly")
NOTE: str = RUN.do(commands.Skip("later")).note
VERSION: str = sequencer.__version__
"""
REFUSED = (
    ("sequencer.nosuch", 'Module has no attribute "nosuch"'),
    ('sequencer.open_run(".", run="x")', 'Unexpected keyword argument "run" for "open_run"'),
    ("sequencer.open_run().wrok()", '"Run" has no attribute "wrok"'),
)


def checked(folder: Path, program: str) -> list[str]:
    """Return what a strict check says of *program*; `mypy` has no options of this project."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary",
         "--follow-imports=silent", "--no-pretty", f"--cache-dir={folder / 'cache'}", "program.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_strict_program_knows_the_type_of_every_public_name(tmp_path: Path) -> None:
    names = [*sequencer.__all__, "__version__"]
    revealed = "\n".join(f"reveal_type(sequencer.{name})" for name in names)
    wrong = "\n".join(line for line, _ in REFUSED)
    said = checked(tmp_path, f"{PROGRAM}\n{revealed}\n{wrong}\n")

    types = [line.partition("Revealed type is ")[2] for line in said if ": note: Revealed" in line]
    assert len(types) == len(names)
    assert not [name for name, kind in zip(names, types, strict=True) if kind == '"Any"']
    errors = [line.partition(": error: ")[2] for line in said if ": error: " in line]
    assert [error.partition("  [")[0] for error in errors] == [message for _, message in REFUSED]


def test_the_program_uses_every_public_name() -> None:
    names = (*sequencer.__all__, "__version__")
    assert not [name for name in names if not re.search(rf"\b{name}\b", PROGRAM)]


def test_the_types_are_those_of_the_names_at_run_time() -> None:
    stub = ast.parse(STUB.read_text()).body
    imported = [one for one in stub if isinstance(one, ast.ImportFrom)]
    homes = {alias.name: one.module or "" for one in imported for alias in one.names}
    (listed,) = (ast.literal_eval(one.value) for one in stub if isinstance(one, ast.Assign))
    assert sorted(homes) == sorted(vars(sequencer)["_HOMES"]) == listed
    for name, module in homes.items():
        assert getattr(import_module(module), name) is getattr(sequencer, name)


def test_the_types_are_installed_with_the_program() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {"*.pyi", "py.typed"} <= {*built["package-data"]["sequencer"]}


def test_importing_the_library_loads_no_submodules() -> None:
    code = "import sequencer, sys; print(*(n for n in sys.modules if n.startswith('sequencer')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sequencer"]


def project_in(folder: Path) -> Path:
    (folder / "orchestration.yaml").write_text(
        "steps: [plan]\nagent: echo\n"
        "agents: {echo: {kind: command, argv: [cat], env: {API_KEY: hunter2-hunter2}}}\n"
    )
    return folder


def test_public_objects_have_a_useful_repr_without_secrets(tmp_path: Path) -> None:
    found = sequencer.open_project(project_in(tmp_path), trust=True, environment={"T": "hunter2"})
    run = found.run("nightly")
    with run.turn() as turn:
        turn.output = "done"
    objects = (run, found, found.agents, run.store, run.commands, turn, run.head, run.view(),
               run.workflow, run.kind, run.limits, run.readiness())  # fmt: skip
    for one in objects:
        assert " object at 0x" not in repr(one)
        assert "hunter2" not in repr(one)
    assert repr(run) == f"<Run 'nightly' in <FileStore {run.store.state_path}>>"
    assert repr(found) == f"<Project {tmp_path}>"


def test_opening_a_run_without_a_project_is_an_error_and_writes_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigurationError, match="there is no project here"):
        sequencer.open_run(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_turn_in_an_untrusted_project_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQUENCER_TRUST", raising=False)
    before = sorted(project_in(tmp_path).iterdir())
    with pytest.raises(sequencer.SequencerError, match="not trusted"):
        sequencer.open_run(tmp_path).turn().__enter__()
    assert sorted(tmp_path.iterdir()) == before


def test_an_unknown_option_of_open_run_is_an_error_about_open_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"run": "x"}
    with pytest.raises(TypeError, match=r"^open_run\(\) got an unexpected keyword argument 'run'$"):
        sequencer.open_run(project_in(tmp_path), **options)
