"""Turns a request into a run: route it, resolve the procedure's steps, and check them all.

Nothing starts before everything is found: the procedure, each step's agent and prompt, and the
outputs that prompts use. The resolved steps are stored with the run, so that they don't change
while it runs. An agent that classifies the request works outside of any run: no claim, no log,
no record.
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
from sequencer.engine.records import drop_comment_tools
from sequencer.engine.supported_fields import drop_unsupported_fields, find_optional_fields
from sequencer.errors import (
    ConfigurationError,
    Interrupted,
    StepFailed,
    StorageFailed,
    UsageRefused,
    format_command,
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
from sequencer.model.outcome import Outcome, OutcomeStatus, Usage, format_cost, sum_usages
from sequencer.model.request import Definition, Request, Route, RoutingAttempt
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.plugins.requests.routing import (
    AgentUnsuitable,
    RoutingSettings,
    classify_with,
    route,
    system_prompts_for,
)
from sequencer.plugins.teams.graphs import build_task_workflow
from sequencer.plugins.teams.lists import SHARED, builtin_tasks
from sequencer.plugins.teams.options import TeamOptions
from sequencer.plugins.teams.scoring import TeamChoice, decide, find_classification, score_request
from sequencer.store.identity import utc_now
from sequencer.workflows import prompts as templates
from sequencer.workflows.registry import PROCEDURES, Registry, builtin_procedure, with_defaults

MODEL_FIELDS = ("single_turn", "disallow_all_tools")
"""Fields that only make sense for a model; they are dropped if a command runs the step."""
REQUIRED_TASK_FIELDS = frozenset({"name", "prompt", "text", "validation", "output", "agent"})
"""Fields of a built-in task that its agent must support."""


class Starter(Struct, frozen=True):
    """Creates definitions of runs."""

    registry: Registry
    routing: RoutingSettings
    agents: Agents
    prompts: PromptFolder
    step_defaults: Mapping[str, Any]
    comment_tools: tuple[str, ...] = ()
    """Tools that could post comments; a no_comment step can't use them."""
    questions: Callable[[], Questions] | None = None
    """Creates the questions to the classifying agent, with one time limit for all of them; None:
    the rules decide."""
    paid: list[Usage] = field(default_factory=list)
    """The usage of each question, even of those without an answer."""
    hooks: Hooks = field(default_factory=NoHooks)
    agent: str | None = None
    """From ``--agent``: performs the steps that don't name an agent, also after a restart."""
    team: TeamStarter | None = None
    """None: teams are not available."""

    def route(self, request: Request, explicit: str | None = None) -> Route:
        """Return the procedure for *request*.

        Raises:
            UnknownName: the named procedure does not exist.
            UsageRefused: the name belongs to a workflow that is not a procedure.
        """
        questions = None if self.questions is None else self.questions()
        try:
            choice = route(
                request,
                explicit=explicit,
                settings=self.routing,
                known=self.registry.procedure_names,
                classify=None if questions is None else classify_with(questions.ask),
            )
        finally:
            self.paid.extend(() if questions is None else questions.paid)
        if questions is not None and questions.paid:
            choice = choice.replace(asked=questions.asked, usage=sum_usages(questions.paid))
        procedure = self.hooks.procedure(request, choice.procedure)
        if procedure != choice.procedure:
            reason = f"a hook chose it instead of {choice.procedure!r}"
            by_hook = RoutingAttempt(source="hook", result=procedure, why=reason)
            candidates = (*choice.considered, by_hook)
            choice = choice.replace(
                procedure=procedure, source="hook", reason=reason, considered=candidates
            )
        workflow = self.registry.get(choice.procedure)
        if not workflow.has_end:
            raise UsageRefused(
                f"workflow {workflow.name!r} is a {workflow.kind}, and a request needs a procedure",
                where="--procedure" if explicit else None,
                hint=f"{format_command(None, shlex.join(['run', '--workflow', workflow.name]))} "
                "runs it without a request",
            )
        return choice

    def define(
        self,
        request: Request,
        explicit: str | None = None,
        wanted: RequestedTeam | None = None,
        route: Route | None = None,
    ) -> Definition:
        """Return the definition of a run for *request*; nothing is stored or started.

        *wanted* is the person's choice of a team; *route* is the route if it is known already.

        Raises:
            ConfigurationError: a step's agent or prompt is not available.
            Also raises the errors of `route` and `TeamStarter.choose`.
        """
        choice = route or self.route(request, explicit)
        return self.build_definition(request, choice, self.choose_team(request, choice, wanted))

    def build_definition(
        self, request: Request, chosen: Route, choice: TeamChoice | None
    ) -> Definition:
        """Return the definition of a run for *request* with this route and team; see `define`."""
        notes: list[str] = []
        if choice is not None and choice.uses_team and self.team is not None:
            workflow = self._resolve_team(
                self.team.workflow(chosen.procedure, choice.size), request, notes
            )
        else:
            workflow = self._resolve_procedure(self.registry.get(chosen.procedure), request, notes)
        self._ensure_complete(workflow)
        return Definition(
            created_at=utc_now(),
            request=request,
            route=chosen.model_dump(mode="json"),
            workflow=workflow,
            substitutions=dict(self.routing.substitutions),
            notes=tuple(dict.fromkeys(notes)),
            agent=self.agent,
            team=None if choice is None else choice_json(choice),
        )

    def choose_team(
        self, request: Request, chosen: Route, wanted: RequestedTeam | None = None
    ) -> TeamChoice | None:
        """Return whether a team works on *request*; None: teams are not available.

        Raises:
            PluginUnavailable: a person asked for a team, and teams are disabled.
        """
        if self.team is None:
            if wanted not in (None, RequestedTeam()):
                raise extensions.PluginUnavailable("a team", "teams")
            return None
        name, wanted = chosen.procedure, wanted or RequestedTeam()
        is_builtin = name in PROCEDURES and self.registry.get(name) == builtin_procedure(name)
        if is_builtin and self.team.options.enabled and wanted == RequestedTeam():
            # If a hook changes the steps, this is no longer the built-in procedure.
            procedure = self.registry.get(name)
            is_builtin = self.hooks.steps(request, procedure) == procedure
        return self.team.choose(request, chosen, wanted, is_builtin=is_builtin)

    def _resolve_procedure(
        self, procedure: Workflow, request: Request, notes: list[str]
    ) -> Workflow:
        """Return *procedure* with its steps resolved for *request*."""
        steps = [self._resolve_step(step, request, notes) for step in procedure.steps]
        description = procedure.description
        workflow = Workflow(procedure.name, steps, kind="procedure", description=description)
        workflow = self.hooks.steps(request, workflow)
        # Steps that a hook has added don't have the project's defaults yet.
        filled_steps = tuple(with_defaults(step, self.step_defaults) for step in workflow.steps)
        return Workflow(workflow.name, filled_steps, kind="procedure", description=description)

    def _resolve_team(self, team: Workflow, request: Request, notes: list[str]) -> Workflow:
        """Return the graph of *team* with its steps resolved for *request*."""
        steps, by_role = [], find_optional_fields(team)
        for step in team.steps:
            filled_step = with_defaults(step, self.step_defaults)
            if self.agent is not None and step.agent is None:
                filled_step = filled_step.replace(agent=self.agent)
            # No person wrote the other fields of built-in tasks, so they are optional.
            extra = [name for name in step.model_fields_set if name not in REQUIRED_TASK_FIELDS]
            optional_names = dict.fromkeys((*by_role.get(step.name, ()), *sorted(extra)))
            fitting_step, lost_names = drop_unsupported_fields(
                self.agents, filled_step, step.name, tuple(optional_names)
            )
            notes += [f"task {step.name!r}: its agent has no {name}" for name in lost_names]
            steps.append(self._resolve_step(fitting_step, request, notes))
        return Workflow(team.name, tuple(steps), kind="graph", graph=team.graph)

    def _resolve_step(self, step: Step, request: Request, notes: list[str]) -> Step:
        """Return *step* resolved for *request*: defaults, agent, prompts and tools."""
        step = with_defaults(step, self.step_defaults)
        update: dict[str, Any] = {}
        if self.agent is not None and step.agent is None:
            step = step.replace(agent=self.agent)
        if step.system_from_labels:
            prompts = system_prompts_for(request, self.routing)
            added = tuple(dict.fromkeys((*step.added_system_prompts, *prompts)))
            update |= {"append_system_prompt": added, "system_from_labels": False}
        if step.validation is not None and step.validation.fixer is not None:
            fixer = self._resolve_step(step.validation.fixer, request, notes)
            update["validation"] = step.validation.replace(fixer=fixer)
        executor = self._executor(step)
        if executor.kind == "command":
            field_names = [name for name in MODEL_FIELDS if getattr(step, name)]
            update |= dict.fromkeys(field_names, False)
            notes += [
                f"step {step.name!r} is a command, so {name} is left out" for name in field_names
            ]
        # Each attempt does this again; do it now too, so that a plan shows the real tools.
        return drop_comment_tools(step.replace(**update), executor, self.comment_tools)

    def _executor(self, step: Step) -> Executor:
        """Return the executor of *step*, whatever fields its executor supports."""
        return self.agents.choose(
            Step(name=step.name, prompt=step.prompt, agent=step.agent), step.name
        )[1]

    def _ensure_complete(self, workflow: Workflow) -> None:
        """Check that every step has its agent, its prompts, and the outputs that they use."""
        known_names = {step.name for step in workflow.steps}
        known_names |= {
            step.validation.fixer.name
            for step in workflow.steps
            if step.validation is not None and step.validation.fixer is not None
        }
        for step, position in _iterate_with_fixers(workflow):
            _, executor = self.agents.choose(step, position)
            text = self.prompts.read_for(step, executor)
            for name in filter(None, (step.system_prompt, *step.added_system_prompts)):
                self.prompts.read(name)
            _ensure_outputs_exist(step, text, known_names)

    def ensure_installed(self, definition: Definition) -> None:
        """Check that the agent of each step is installed, so that the run can start.

        Raises:
            AgentMissing: see `Agents.choose_installed`.
        """
        for step, position in _iterate_with_fixers(definition.workflow):
            self.agents.choose_installed(step, position)


def _iterate_with_fixers(workflow: Workflow) -> Iterator[tuple[Step, str]]:
    """Yield (step, position) for each step, followed by its fixer with the same position."""
    for step in workflow.steps:
        yield step, step.name
        if step.validation is not None and step.validation.fixer is not None:
            yield step.validation.fixer, step.name


def _ensure_outputs_exist(step: Step, text: str, known_names: set[str]) -> None:
    """Check that every step whose output *text* uses exists.

    Raises:
        ConfigurationError: a step does not exist, so this step would always fail.
    """
    for name in _used_steps(text):
        if name not in known_names:
            raise ConfigurationError(
                f"its prompt asks for {{{{steps.{name}.output}}}}, but there is no such step",
                where=f"step {step.name!r} ({step.prompt_name})",
                hint=f"the procedure's steps: {', '.join(sorted(known_names))}",
            )


def _used_steps(text: str) -> Iterator[str]:
    for path in templates.iter_template_paths(text):
        if path[0] == "steps" and len(path) > 1:
            yield path[1]


def describe_lost_cost(paid: Iterable[Usage]) -> str:
    """Return a sentence about the cost *paid* for a run that was not created, or nothing."""
    cost = format_cost(sum_usages(paid))
    return f"classifying the request cost {cost}, which no run counts" if cost else ""


SUFFIX = "-team"
"""Suffix of the workflow in which a team does the work of a procedure."""


class RequestedTeam(Struct, frozen=True):
    """The person's choice of a team."""

    asked: bool | None = None
    """``--team``, ``--no-team``, or neither."""
    size: int | None = None
    """``--team-size``."""


class TeamStarter(Struct, frozen=True):
    """Decides whether a team works on a request, and creates its graph."""

    options: TeamOptions
    routing: RoutingSettings

    def choose(
        self, request: Request, chosen: Route, wanted: RequestedTeam, *, is_builtin: bool
    ) -> TeamChoice:
        """Return whether a team works on *request*, for which *chosen* is the route.

        The tasks of a team match only a built-in procedure. If the project has changed it (not
        *is_builtin*), a team works on it only if a person asks for it.

        Raises:
            UsageRefused: a person asked for a team, and the procedure has none.
        """
        objection = None
        by_size = wanted.asked is None and wanted.size is not None
        if chosen.procedure not in SHARED:
            objection = f"procedure {chosen.procedure!r} can't be shared out among a team"
            if wanted.asked or by_size:
                alternative = "so can workflows with 'tasks'"
                hint = f"these can: {', '.join(SHARED)}; {alternative}"
                where = "--team-size" if by_size else "--team"
                raise UsageRefused(objection, where=where, hint=hint)
        wish = True if by_size else wanted.asked
        if objection is None and wish is None and not is_builtin:
            objection = f"the project has steps of its own for procedure {chosen.procedure!r}"
        score = score_request(request, chosen, self.routing, self.options)
        kind = find_classification(request, chosen, self.routing)
        choice = decide(score, self.options, kind, wish)
        if choice.uses_team and objection is not None:
            return replace(choice, uses_team=False, why=objection)
        if by_size:
            choice = replace(choice, why="--team-size was given")
        return choice if wanted.size is None else replace(choice, size=wanted.size)

    def workflow(self, procedure: str, size: int) -> Workflow:
        """Return the graph of tasks in which a team of *size* does the work of *procedure*.

        Raises:
            ConfigurationError: it has more tasks than a run may have.
        """
        return build_task_workflow(
            procedure + SUFFIX,
            builtin_tasks(procedure, size),
            self.options.every_role,
            size=size,
            max_tasks=self.options.max_tasks,
            # Nothing else can be wrong in a built-in list.
            locate=lambda _: "teams.max_tasks",
        )


def choice_json(choice: TeamChoice) -> dict[str, Any]:
    """Return the JSON of *choice* for the journal and ``definition.json``."""
    return {
        "uses_team": choice.uses_team,
        "why": choice.why,
        "score": choice.score.score,
        "size": choice.size,
        "reasons": [f"{reason.points:+d} {reason.text}" for reason in choice.score.reasons],
    }


class _IgnoredOutput:
    """Ignores all output; only the answer is used."""

    def write(self, data: bytes, kind: Piece = Piece.OUTPUT) -> None:
        """Ignore it."""

    def report_usage(self, usage: Usage) -> None:
        """Ignore it."""


MAX_GRACE_S = 0.5
"""Maximum time between TERM and KILL: an agent that only answers has nothing to save."""
MIN_S = 1.0
"""Minimum time for another question; no agent answers in less."""


class Questions:
    """Asks *agent* questions: in one turn each, without tools, and in an empty folder.

    The text of a question is untrusted, so the agent must not be able to act. A command is the
    user's own program and keeps its abilities.
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
        """Ask nothing yet; the time limit starts with the first question.

        *make_place* returns a folder of this user in which the empty one is created: clients
        search for settings in the parent folders, and other users can write above a shared one.
        """
        self.asked = self._agent = agent
        self.paid: list[Usage] = []
        """The usage of each question, in order."""
        self._agents = agents
        self._ensure_may_ask = ensure_may_ask
        self._within_s = within_s
        self._project = project
        self._make_place = make_place
        self._until: float | None = None

    def ask(self, prompt: str) -> str:
        """Return the answer to *prompt*.

        Raises:
            ConfigurationError: the agent is not configured, or is not installed.
            AgentUnsuitable: it can't be started without tools, or no folder can be created for it.
            StepFailed: it failed, did not answer in time, or no time was left to ask it.
            Interrupted: a person interrupted it.
            NotTrusted: the project may not start agents on this machine.
        """
        self._ensure_may_ask()
        if self._until is None:
            self._until, left_s = time.monotonic() + self._within_s, self._within_s
        else:
            left_s = self._until - time.monotonic()
            if left_s < MIN_S:
                raise StepFailed(f"too little of the {self._within_s:g} s is left to ask again")
        # Starting the agent and stopping it by force must fit into the limit too.
        grace_s = min(MAX_GRACE_S, left_s / 10)
        outcome = self._run_agent(prompt, left_s - 2 * grace_s, grace_s)
        if outcome.status is OutcomeStatus.INTERRUPTED:
            raise Interrupted("interrupted while an agent was asked; nothing was started")
        if outcome.is_accepted:
            return outcome.output
        if self._until - time.monotonic() <= 2 * grace_s:
            raise StepFailed(f"no answer within {self._within_s:g} s")
        raise StepFailed(outcome.error or f"the agent's outcome is {outcome.status}")

    def _run_agent(self, prompt: str, timeout_s: float, grace_s: float) -> Outcome:
        step = Step(name="classifier", agent=self._agent, timeout_s=timeout_s)
        name, candidate, _ = self._agents.choose_installed(step, "classifier")
        executor = without_tools(candidate, self._project)
        if isinstance(executor, Objection):
            raise AgentUnsuitable(
                f"agent {name!r} is not asked: {executor.reason}", hint=executor.hint
            )
        self.asked = name
        field = next((name for name in WITHOUT_TOOLS if name in executor.supported_fields), None)
        step = step if field is None else step.replace(**{field: True})
        folder = self._make_folder(name)
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
        # Unknown cost, until the agent reports its usage.
        usage = Usage(unpriced=1)
        try:
            outcome = executor.perform(request, _IgnoredOutput(), cancellation)
            usage = outcome.usage
        except Exception:
            # The agent was not started, so it has cost nothing.
            usage = Usage()
            raise
        finally:
            self.paid.append(usage)
            cancellation.close()
            shutil.rmtree(folder, ignore_errors=True)
        return judge_turn(outcome)

    def _make_folder(self, agent: str) -> Path:
        """Return a new folder that contains only an empty folder."""
        try:
            folder = Path(tempfile.mkdtemp(dir=self._make_place())).resolve()
            (folder / "empty").mkdir(mode=0o700)
        except (OSError, ConfigurationError, StorageFailed) as error:
            # No shared folder as a fallback: a client would read settings of others above it.
            reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else error
            problem = f"there is no folder for it ({reason})"
            raise AgentUnsuitable(f"agent {agent!r} is not asked: {problem}") from error
        return folder
