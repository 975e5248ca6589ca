"""From a request to a run: route it, resolve the procedure's steps, and check them all.

Nothing is started before everything is known to be there: the procedure, each step's
agent and prompt, and the outputs that prompts ask for. What is resolved is kept with the
run, so that it does not change under way. An agent that is asked which procedure it is to be
works outside of any run: no claim, no log, nothing kept.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer import extensions
from sequencer.engine.agents import Agents
from sequencer.engine.evidence import judge_turn
from sequencer.engine.hooking import Hooks, NoHooks
from sequencer.engine.prompts import PromptFolder
from sequencer.engine.records import without_comments
from sequencer.engine.supported_fields import fitted, optional_of
from sequencer.errors import (
    ConfigurationError,
    Interrupted,
    StepFailed,
    StorageFailed,
    UsageRefused,
    command,
)
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.protocol import (
    WITHOUT_TOOLS,
    Executor,
    Identity,
    Objection,
    Piece,
    StepRequest,
    without_tools,
)
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage, cost_words, total
from sequencer.model.request import Considered, Definition, Request, Route
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.requests.routing import (
    NotAsked,
    RoutingSettings,
    classify_with,
    route,
    system_prompts_for,
)
from sequencer.plugins.teams.graphs import workflow_of
from sequencer.plugins.teams.lists import SHARED, builtin_tasks
from sequencer.plugins.teams.options import TeamOptions
from sequencer.plugins.teams.scoring import TeamChoice, classification_of, decide, score_request
from sequencer.store.identity import utc_now
from sequencer.workflows import prompts as templates
from sequencer.workflows.registry import PROCEDURES, Registry, builtin_procedure, with_defaults

NO_BUSINESS_OF_A_PROGRAM = ("single_turn", "disallow_all_tools")
"""Fields that say how a model works; a command that is run in its place has no such thing."""
WHAT_A_TASK_IS = frozenset({"name", "prompt", "text", "validation", "output", "agent"})
"""Fields of a built-in task that no agent may do without."""


class Starter(Struct, frozen=True):
    """Makes definitions of runs."""

    registry: Registry
    routing: RoutingSettings
    agents: Agents
    prompts: PromptFolder
    step_defaults: Mapping[str, Any]
    comment_tools: tuple[str, ...] = ()
    """Tools with which an agent could post comments; a no_comment step has none of them."""
    questions: Callable[[], Questions] | None = None
    """Returns what asks an agent what kind of request one is, which takes a limited time in
    all; None: the rules decide."""
    paid: list[Usage] = field(default_factory=list)
    """What each question has used, also where no answer came of it."""
    hooks: Hooks = field(default_factory=NoHooks)
    agent: str | None = None
    """Was asked for by name: performs the steps that name none, also after a restart."""
    team: TeamStarter | None = None
    """None: nobody works in teams here."""

    def route(self, request: Request, explicit: str | None = None) -> Route:
        """Return which procedure *request* goes to.

        Raises:
            UnknownName: the procedure that was named does not exist.
            UsageRefused: it is no procedure.
        """
        questions = None if self.questions is None else self.questions()
        try:
            chosen = route(
                request,
                explicit=explicit,
                settings=self.routing,
                known=self.registry.procedure_names,
                classify=None if questions is None else classify_with(questions.ask),
            )
        finally:
            self.paid.extend(() if questions is None else questions.paid)
        if questions is not None and questions.paid:
            chosen = chosen.replace(asked=questions.asked, usage=total(questions.paid))
        wanted = self.hooks.procedure(request, chosen.procedure)
        if wanted != chosen.procedure:
            why = f"a hook chose it instead of {chosen.procedure!r}"
            by_hook = Considered(source="hook", result=wanted, why=why)
            considered = (*chosen.considered, by_hook)
            chosen = chosen.replace(
                procedure=wanted, source="hook", reason=why, considered=considered
            )
        workflow = self.registry.get(chosen.procedure)
        if workflow.kind != "procedure":
            raise UsageRefused(
                f"workflow {workflow.name!r} is a {workflow.kind}, and a request needs a procedure",
                where="--procedure" if explicit else None,
                hint=f"{command(None, shlex.join(['run', '--workflow', workflow.name]))} runs it "
                "without a request",
            )
        return chosen

    def define(
        self,
        request: Request,
        explicit: str | None = None,
        wanted: WantedTeam | None = None,
        route: Route | None = None,
    ) -> Definition:
        """Return what a run of *request* is to be made of; nothing is kept or started.

        *wanted* is what a person said about a team, *route* how the request was routed before.

        Raises:
            ConfigurationError: a step's agent or prompt can't be had.
            Raises also what `route` and `TeamStarter.choose` do.
        """
        chosen = route or self.route(request, explicit)
        return self.made_of(request, chosen, self.choose_team(request, chosen, wanted))

    def made_of(self, request: Request, chosen: Route, choice: TeamChoice | None) -> Definition:
        """Return what a run of *request* is to be made of, where all is *chosen*; see `define`."""
        notes: list[str] = []
        if choice is not None and choice.uses_team and self.team is not None:
            workflow = self._tasks(
                self.team.workflow(chosen.procedure, choice.size), request, notes
            )
        else:
            workflow = self._line(self.registry.get(chosen.procedure), request, notes)
        self._ensure_complete(workflow)
        return Definition(
            created_at=utc_now(),
            request=request,
            route=chosen.model_dump(mode="json"),
            workflow=workflow,
            substitutions=dict(self.routing.substitutions),
            notes=tuple(dict.fromkeys(notes)),
            agent=self.agent,
            team=None if choice is None else told(choice),
        )

    def choose_team(
        self, request: Request, chosen: Route, wanted: WantedTeam | None = None
    ) -> TeamChoice | None:
        """Return whether a team works on *request*; None: there are no teams here.

        Raises:
            PluginUnavailable: a person asked for a team, and teams are disabled.
        """
        if self.team is None:
            if wanted not in (None, WantedTeam()):
                raise extensions.PluginUnavailable("a team", "teams")
            return None
        name, wanted = chosen.procedure, wanted or WantedTeam()
        is_builtin = name in PROCEDURES and self.registry.get(name) == builtin_procedure(name)
        if is_builtin and self.team.options.enabled and wanted == WantedTeam():
            # A hook that has other steps for this request makes a procedure of the project's own.
            whole = self.registry.get(name)
            is_builtin = self.hooks.steps(request, whole) == whole
        return self.team.choose(request, chosen, wanted, is_builtin=is_builtin)

    def _line(self, whole: Workflow, request: Request, notes: list[str]) -> Workflow:
        """Return the procedure *whole* with its steps as they are to run for *request*."""
        steps = [self._resolved(step, request, notes) for step in whole.steps]
        about = whole.description
        workflow = Workflow(whole.name, steps, kind="procedure", description=about)
        workflow = self.hooks.steps(request, workflow)
        # Steps that a hook made have had no defaults yet.
        filled = tuple(with_defaults(step, self.step_defaults) for step in workflow.steps)
        return Workflow(workflow.name, filled, kind="procedure", description=about)

    def _tasks(self, whole: Workflow, request: Request, notes: list[str]) -> Workflow:
        """Return the team's graph *whole* with its steps as they are to run for *request*."""
        steps, brought = [], optional_of(whole)
        for step in whole.steps:
            filled = with_defaults(step, self.step_defaults)
            if self.agent is not None and step.agent is None:
                filled = filled.replace(agent=self.agent)
            # What the built-in tasks ask for beside their prompts is no author's wish either.
            own = [name for name in step.model_fields_set if name not in WHAT_A_TASK_IS]
            optional = dict.fromkeys((*brought.get(step.name, ()), *sorted(own)))
            kept, lost = fitted(self.agents, filled, step.name, tuple(optional))
            notes += [f"task {step.name!r}: its agent has no {name}" for name in lost]
            steps.append(self._resolved(kept, request, notes))
        return Workflow(whole.name, tuple(steps), kind="graph", graph=whole.graph)

    def _resolved(self, step: Step, request: Request, notes: list[str]) -> Step:
        """Return *step* as it is to run for *request*."""
        step = with_defaults(step, self.step_defaults)
        update: dict[str, Any] = {}
        if self.agent is not None and step.agent is None:
            step = step.replace(agent=self.agent)
        if step.system_from_labels:
            chosen = system_prompts_for(request, self.routing)
            added = tuple(dict.fromkeys((*step.added_system_prompts, *chosen)))
            update |= {"append_system_prompt": added, "system_from_labels": False}
        if step.validation is not None and step.validation.fixer is not None:
            fixer = self._resolved(step.validation.fixer, request, notes)
            update["validation"] = step.validation.replace(fixer=fixer)
        executor = self._executor(step)
        if executor.kind == "command":
            dropped = [name for name in NO_BUSINESS_OF_A_PROGRAM if getattr(step, name)]
            update |= dict.fromkeys(dropped, False)
            notes += [f"step {step.name!r} is a command, so {name} is left out" for name in dropped]
        # Each attempt does it again; here for who looks at what is to run.
        return without_comments(step.replace(**update), executor, self.comment_tools)

    def _executor(self, step: Step) -> Executor:
        """Return what performs *step*, whatever of its fields it can honour."""
        return self.agents.choose(
            Step(name=step.name, prompt=step.prompt, agent=step.agent), step.name
        )[1]

    def _ensure_complete(self, workflow: Workflow) -> None:
        """Return if every step has its agent and its prompts, and can have what it asks for."""
        known = {step.name for step in workflow.steps}
        known |= {
            step.validation.fixer.name
            for step in workflow.steps
            if step.validation is not None and step.validation.fixer is not None
        }
        for one, position in _with_fixers(workflow):
            _, executor = self.agents.choose(one, position)
            text = self.prompts.read_for(one, executor)
            for name in filter(None, (one.system_prompt, *one.added_system_prompts)):
                self.prompts.read(name)
            _ensure_said(one, text, known)

    def ensure_installed(self, definition: Definition) -> None:
        """Return if the agent of each step is installed, so that the run can begin.

        Raises:
            AgentMissing: see `Agents.ready`.
        """
        for one, position in _with_fixers(definition.workflow):
            self.agents.ready(one, position)


def _with_fixers(workflow: Workflow) -> Iterator[tuple[Step, str]]:
    """Yield each step, and behind it its fixer, with the name of the step."""
    for step in workflow.steps:
        yield step, step.name
        if step.validation is not None and step.validation.fixer is not None:
            yield step.validation.fixer, step.name


def _ensure_said(step: Step, text: str, known: set[str]) -> None:
    """Return if every step whose output *text* asks for exists.

    Raises:
        ConfigurationError: one does not, so that the step could only fail.
    """
    for name in _asked(text):
        if name not in known:
            raise ConfigurationError(
                f"its prompt asks for {{{{steps.{name}.output}}}}, but there is no such step",
                where=f"step {step.name!r} ({step.prompt_name})",
                hint=f"the procedure's steps: {', '.join(sorted(known))}",
            )


def _asked(text: str) -> Iterator[str]:
    for path in templates.names(text):
        if path[0] == "steps" and len(path) > 1:
            yield path[1]


def lost_words(paid: Iterable[Usage]) -> str:
    """Return what was *paid* for a run that was not made; empty: nothing was."""
    spent = cost_words(total(paid))
    return f"classifying the request cost {spent}, which no run counts" if spent else ""


SUFFIX = "-team"
"""Behind a procedure's name: the workflow in which a team does what the procedure does."""


class WantedTeam(Struct, frozen=True):
    """What a person said about the team."""

    asked: bool | None = None
    """``--team``, ``--no-team``, or neither."""
    size: int | None = None
    """``--team-size``."""


class TeamStarter(Struct, frozen=True):
    """Decides whether a team works on a request, and makes its graph."""

    options: TeamOptions
    routing: RoutingSettings

    def choose(
        self, request: Request, chosen: Route, wanted: WantedTeam, *, is_builtin: bool
    ) -> TeamChoice:
        """Return whether *request*, which goes to the procedure of *chosen*, goes to a team.

        A procedure that the project has changed, so that it is not *is_builtin*, has steps
        that no team's tasks know of; a team works on it only if a person says so.

        Raises:
            UsageRefused: a person asked for one, and there is none for the procedure.
        """
        why = None
        by_size = wanted.asked is None and wanted.size is not None
        if chosen.procedure not in SHARED:
            why = f"procedure {chosen.procedure!r} can't be shared out among a team"
            if wanted.asked or by_size:
                others = "so can workflows with 'tasks'"
                hint = f"these can: {', '.join(SHARED)}; {others}"
                where = "--team-size" if by_size else "--team"
                raise UsageRefused(why, where=where, hint=hint)
        asked = True if by_size else wanted.asked
        if why is None and asked is None and not is_builtin:
            why = f"the project has steps of its own for procedure {chosen.procedure!r}"
        found = score_request(request, chosen, self.routing, self.options)
        kind = classification_of(request, chosen, self.routing)
        choice = decide(found, self.options, kind, asked)
        if choice.uses_team and why is not None:
            return replace(choice, uses_team=False, why=why)
        if by_size:
            choice = replace(choice, why="--team-size was given")
        return choice if wanted.size is None else replace(choice, size=wanted.size)

    def workflow(self, procedure: str, size: int) -> Workflow:
        """Return the graph of the tasks in which a team of *size* does what *procedure* does.

        Raises:
            ConfigurationError: these are more tasks than a run may have.
        """
        return workflow_of(
            procedure + SUFFIX,
            builtin_tasks(procedure, size),
            self.options.every_role,
            size=size,
            max_tasks=self.options.max_tasks,
            # Of a built-in list nothing else can be wrong.
            locate=lambda _: "teams.max_tasks",
        )


def told(choice: TeamChoice) -> dict[str, Any]:
    """Return *choice* as it stands in the journal and in ``definition.json``."""
    return {
        "uses_team": choice.uses_team,
        "why": choice.why,
        "score": choice.score.score,
        "size": choice.size,
        "reasons": [f"{one.points:+d} {one.text}" for one in choice.score.reasons],
    }


class _Deaf:
    """Hears nothing; the answer is all that counts."""

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Ignore it."""

    def used(self, usage: Usage) -> None:
        """Ignore it."""


MOST_GRACE_S = 0.5
"""Between TERM and KILL: what only answers has nothing to save."""
LEAST_S = 1.0
"""For another question; in less time nobody answers."""


class Questions:
    """What *agent* is asked: in one turn each, without tools, and in an empty folder.

    The text of a question is a stranger's, so whoever answers can do nothing else. A command
    is the person's own program, and keeps what it can do.
    """

    def __init__(
        self,
        agents: Agents,
        agent: str,
        *,
        within_s: float,
        project: Path,
        ensure_may_ask: Callable[[], object],
        make_place: Callable[[], Path],
    ) -> None:
        """Ask nobody yet; the clock starts with the first question, once it may be asked.

        *make_place* returns a folder of this user in which the empty one is made: clients look
        for their settings in the folders above, and above a shared one anybody can leave some.
        """
        self.asked = self._agent = agent
        self.paid: list[Usage] = []
        """What each question has used, in their order."""
        self._agents = agents
        self._ensure_may_ask = ensure_may_ask
        self._within_s = within_s
        self._project = project
        self._make_place = make_place
        self._until: float | None = None

    def ask(self, prompt: str) -> str:
        """Return the answer to *prompt*.

        Raises:
            ConfigurationError: the agent can't be had, or is not installed.
            NotAsked: it can't be started without tools, or there is no place for it.
            StepFailed: it failed, did not answer in time, or had no time left to be asked.
            Interrupted: somebody interrupted it.
            NotTrusted: the project may not ask anybody here.
        """
        self._ensure_may_ask()
        if self._until is None:
            self._until, left_s = time.monotonic() + self._within_s, self._within_s
        else:
            left_s = self._until - time.monotonic()
            if left_s < LEAST_S:
                raise StepFailed(f"too little of the {self._within_s:g} s is left to ask again")
        # Its end by force has to fit in as well, and so has the start.
        grace_s = min(MOST_GRACE_S, left_s / 10)
        outcome = self._outcome(prompt, left_s - 2 * grace_s, grace_s)
        if outcome.status is OutcomeStatus.INTERRUPTED:
            raise Interrupted("interrupted while an agent was asked; nothing was started")
        if outcome.is_accepted:
            return outcome.output
        if self._until - time.monotonic() <= 2 * grace_s:
            raise StepFailed(f"no answer within {self._within_s:g} s")
        raise StepFailed(outcome.error or f"the agent's outcome is {outcome.status}")

    def _outcome(self, prompt: str, timeout_s: float, grace_s: float) -> Outcome:
        step = Step(name="classifier", agent=self._agent, timeout_s=timeout_s)
        name, chosen, _ = self._agents.ready(step, "classifier")
        executor = without_tools(chosen, self._project)
        if isinstance(executor, Objection):
            raise NotAsked(f"agent {name!r} is not asked: {executor.reason}", hint=executor.hint)
        self.asked = name
        field = next((one for one in WITHOUT_TOOLS if one in executor.supported_fields), None)
        step = step if field is None else step.replace(**{field: True})
        folder = self._folder(name)
        cancellation = Cancellation()
        request = StepRequest(
            identity=Identity(step=step.name, token=0),
            step=step,
            prompt=prompt,
            cwd=folder / "empty",
            result_path=folder / "answer" / "result.json",
            decides=True,
            timeout_s=timeout_s,
            grace_s=grace_s,
        )
        # Until it has said what it has used.
        usage = Usage(unpriced=1)
        try:
            outcome = executor.perform(request, _Deaf(), cancellation)
            usage = outcome.usage
        except Exception:
            # It was not started.
            usage = Usage()
            raise
        finally:
            self.paid.append(usage)
            cancellation.close()
            shutil.rmtree(folder, ignore_errors=True)
        return judge_turn(outcome)

    def _folder(self, agent: str) -> Path:
        """Return a new folder, in which there is an empty one and nothing else."""
        try:
            folder = Path(tempfile.mkdtemp(dir=self._make_place())).resolve()
            (folder / "empty").mkdir(mode=0o700)
        except (OSError, ConfigurationError, StorageFailed) as error:
            # Not a shared folder: a client reads the settings that others leave above it.
            what = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else error
            why = f"there is no folder for it ({what})"
            raise NotAsked(f"agent {agent!r} is not asked: {why}") from error
        return folder
