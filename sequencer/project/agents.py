"""The executors of a project: the class of each agent, and how it is created.

A new executor is one module and one line in `EXECUTORS`. Other packages add theirs through entry
points. Executors are imported when a step needs them, so commands that only read load none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer import extensions
from sequencer.engine.evidence import OWN_WORD
from sequencer.errors import AgentMissing, ConfigurationError, UnknownName, raise_all
from sequencer.executors import project_files
from sequencer.executors.fake_agents import RehearsalExecutor, RehearsalOptions
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import (
    EVERY_EXECUTOR,
    ChecksInstallation,
    Executor,
    HasPermissions,
    Objection,
    ValidatesSteps,
    make_checked_perform,
)
from sequencer.executors.tool_words import writing_objection
from sequencer.files.keys import find_problems
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.packages import ensure_fields
from sequencer.project.schema import BUILTIN_AGENTS, OLD_ROLES
from sequencer.project.settings import Agent, Settings
from sequencer.project.task_graphs import TASK_GRAPHS
from sequencer.project.trusting import Trust
from sequencer.store.identity import utc_milliseconds
from sequencer.workflows.prompts import relative_name
from sequencer.workflows.registry import with_defaults
from sequencer.workflows.router import allowed_prompts


class Recipe(Struct, frozen=True):
    """The module and the two classes of an executor, and whether it starts processes."""

    module: str
    executor: str
    options: str
    needs_core: bool = True


def _client_recipe(kind: str) -> Recipe:
    name = kind.capitalize()
    return Recipe(f"sequencer.executors.{kind}", f"{name}Executor", f"{name}Options")


def _fake_agent_recipe(kind: str) -> Recipe:
    recipe = _client_recipe(kind)
    return replace(recipe, module="sequencer.executors.fake_agents", needs_core=False)


EXECUTORS: Mapping[str, Recipe] = {
    "anthropic": Recipe("sequencer.executors.messages_api", "MessagesExecutor", "MessagesOptions"),
    "claude": _client_recipe("claude"),
    "codex": _client_recipe("codex"),
    "command": _client_recipe("command"),
    "gemini": _client_recipe("gemini"),
    "opencode": _client_recipe("opencode"),
    "rehearsal": _fake_agent_recipe("rehearsal"),
    "scripted": _fake_agent_recipe("scripted"),
}
"""Kind of agent -> its recipe. An entry point of ``sequencer.executors`` is a function
``(name, options, core) -> Executor`` that takes the options as written."""


REHEARSAL = "rehearsal"
MODELLESS = frozenset({"command", "rehearsal", "scripted"})
"""Kinds that answer without a model, so they never classify a request."""

STEADY = frozenset({"command", "rehearsal"})
"""Kinds without a fallback: a model can't replace a program, as no prompt describes its work."""

PROVIDERS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("claude", "anthropic"),
    "google": ("gemini",),
    "openai": ("codex",),
}
"""Provider -> kinds of agent that have only its models; opencode has models of all providers."""


class ConfiguredAgents(Struct, frozen=True, dict=True):
    """Builds executors from ``agents:`` and the built-in names; see `engine.agents.Agents`."""

    settings: Settings
    overrides: AgentOverrides
    environment: Mapping[str, str]
    trust: Trust
    rehearses: bool = False
    """No agent runs, no matter which one is named."""

    def __repr__(self) -> str:
        """Return only the folder: the environment holds secrets."""
        return f"<ConfiguredAgents of {self.settings.project_dir}>"

    @cached_property
    def core(self) -> ProcessCore:
        """Return the process core that all agents of this process share."""
        return ProcessCore()

    @cached_property
    def _looks(self) -> dict[Path, tuple[int, ...]]:
        return {}

    @cached_property
    def _installed(self) -> set[str]:
        return set()

    @cached_property
    def _autos(self) -> dict[str | None, str]:
        return {}

    @cached_property
    def _away(self) -> dict[str, str]:
        """Agent's name -> time when its usage limit ends."""
        return {}

    @cached_property
    def _built(self) -> dict[str, Executor]:
        return {}

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        choice = choose_agent(self.settings, step, position, self.overrides)
        name = choice.name
        if self.rehearses:
            return REHEARSAL, self._make_fake_agent(name)
        if name == "auto" and "auto" not in self.settings.agents:
            name = self._resolve_auto(step)
        return name, self._build_for_step(step, name)

    def _build_for_step(self, step: Step, name: str) -> Executor:
        executor = self.build(name)
        ensure_supported(step, name, executor)
        # The previous agent may have changed files that this one runs, or that its client reads.
        if name in self.settings.agents:
            self.trust.ensure_files(f"agents.{name}", self._looks)
        if executor.kind in CLIENTS:
            self.trust.ensure_client(executor.kind, self._options(name))
        return executor

    def ensure_folder(self, agent: str, folder: Path) -> None:
        if self.rehearses or folder == self.settings.project_dir:
            return
        kind = self.build(agent).kind
        if agent in self.settings.agents:
            self.trust.ensure_files_in(f"agents.{agent}", folder)
        if kind in CLIENTS:
            self.trust.ensure_client(kind, self._options(agent), folder)

    def _options(self, name: str) -> Mapping[str, Any]:
        agent = self.settings.agents.get(name)
        return agent.options if agent else {}

    def choose_installed(self, step: Step, position: str) -> tuple[str, Executor, str | None]:
        name, executor = self.choose(step, position)
        if (
            self._away
            and self._is_away(name)
            and (fallback := self.choose_fallback(step, name)) is not None
        ):
            return (
                *fallback,
                f"{fallback[0]} instead of {name}: its usage limit ends {self._away[name]}",
            )
        try:
            if name not in self._installed:
                self._ensure_installed(name, executor)
        except AgentMissing as error:
            if (fallback := self.choose_fallback(step, name)) is None:
                raise
            reason = error.message.removeprefix(f"agents.{name}: ")
            return *fallback, f"{fallback[0]} instead of {name}: {reason}"
        return name, executor, None

    @property
    def has_fallback(self) -> bool:
        return bool(self.settings.agent.fallback) and not self.rehearses

    def choose_fallback(
        self, step: Step, agent: str, not_before: str | None = None
    ) -> tuple[str, Executor] | None:
        if self.rehearses or self.build(agent).kind in STEADY:
            return None
        if not_before is not None:
            self._away[agent] = not_before
        names = (name for name in self._list_fallbacks(agent) if not self._is_away(name))
        for name in names:
            executor = self._try_fallback(step, name)
            if not isinstance(executor, ConfigurationError):
                return name, executor
        return None

    def list_unfit_fallbacks(self, step: Step, agent: str) -> list[tuple[str, ConfigurationError]]:
        if not self.settings.agent.fallback or self.rehearses:
            return []
        if self.build(agent).kind in STEADY:
            return []
        attempts = ((name, self._try_fallback(step, name)) for name in self._list_fallbacks(agent))
        return [
            (name, result) for name, result in attempts if isinstance(result, ConfigurationError)
        ]

    def _list_fallbacks(self, agent: str) -> list[str]:
        """Return the fallback agents for *agent*, in the order in which they are tried."""
        names = self.settings.agent.fallback
        candidates = names[names.index(agent) + 1 if agent in names else 0 :]
        return [name for name in candidates if name != agent]

    def _try_fallback(self, step: Step, name: str) -> Executor | ConfigurationError:
        """Return the executor of the agent *name* for *step*, or the error if it can't run it."""
        try:
            executor = self._build_for_step(step, name)
            if name not in self._installed:
                self._ensure_installed(name, executor)
        except ConfigurationError as error:
            return error
        return executor

    def fallbacks(self, step: Step, agent: str) -> Iterator[tuple[str, Executor]]:
        """Yield the agents that may perform *step* in place of *agent*, installed or not."""
        if not self.rehearses and self.build(agent).kind not in STEADY:
            for name in self._list_fallbacks(agent):
                with suppress(ConfigurationError):  # `list_unfit_fallbacks` says why
                    yield name, self._build_for_step(step, name)

    def _is_away(self, name: str) -> bool:
        return self._away.get(name, "") > utc_milliseconds()

    def _ensure_installed(self, name: str, executor: Executor) -> None:
        if not isinstance(executor, ChecksInstallation):
            return
        # The claim may bring the step's code, so a program of the project may be missing now.
        carries_code = self.settings.store_kind.carries_code
        problem = executor.find_missing(None if carries_code else self.settings.project_dir)
        if problem is not None:
            hint = "no step was claimed; install it or set it, and start again"
            raise AgentMissing(problem, hint=hint)
        self._installed.add(name)

    def _make_fake_agent(self, name: str) -> Executor:
        """Return the fake agent that replaces the agent called *name* in a rehearsal."""
        agent = self.settings.agents.get(name)
        is_command = agent is not None and agent.kind == "command"
        return RehearsalExecutor(REHEARSAL, RehearsalOptions(), is_for_command=is_command)

    def _resolve_auto(self, step: Step) -> str:
        """Return the agent that `auto` means for *step*; searches PATH once per provider."""
        agent = self._autos.get(step.provider)
        if agent is None:
            has_models = partial(_has_provider_models, step)
            agent = self._autos[step.provider] = resolve_auto(
                shutil.which, self.environment, has_models
            )
        return agent

    def default_model_agent(self) -> str | None:
        """Return the agent for questions outside a step; None if there is no model to ask."""
        if self.rehearses:
            return None
        name = self.settings.agent.default
        if name == "auto" and name not in self.settings.agents:
            try:
                name = resolve_auto(shutil.which, self.environment)
            except ConfigurationError:
                return None
        agent = self.settings.agents.get(name)
        kind = agent.kind if agent else name
        if kind not in EXECUTORS:
            with suppress(ConfigurationError):
                kind = self.build(name).kind
        return None if kind in MODELLESS else name

    def warm_up(self) -> None:
        self.core.prepare()

    def close(self) -> None:
        if "core" in self.__dict__:
            self.core.close()

    def build(self, name: str) -> Executor:
        """Return the executor of the agent called *name*.

        Raises:
            ConfigurationError: its options don't suit its kind.
        """
        if name not in self._built:
            agent = self.settings.agents.get(name)
            self._built[name] = self._make(name, agent.kind if agent else name, agent)
        return self._built[name]

    def _make(self, name: str, kind: str, agent: Agent | None) -> Executor:
        option_values = dict(agent.options) if agent else {}
        recipe = EXECUTORS.get(kind)
        try:
            if recipe is None:
                return self._make_plugin(name, kind, agent, option_values)
            module = import_module(recipe.module)
            form = getattr(module, recipe.options)
            if "prices" in form.model_fields and self.settings.prices:
                prices = option_values.get("prices", {})
                is_mapping = isinstance(prices, dict)
                option_values["prices"] = (
                    {**self.settings.prices, **prices} if is_mapping else prices
                )
            options = form.model_validate(option_values)
        except ValidationError as error:
            _refuse_options(agent, name, kind, form, error)
            raise
        cls = getattr(module, recipe.executor)
        executor: Executor = (
            cls(name, options, self.core) if recipe.needs_core else cls(name, options)
        )
        return executor

    def _make_plugin(
        self, name: str, kind: str, agent: Agent | None, option_values: dict[str, Any]
    ) -> Executor:
        make = extensions.require(
            extensions.EXECUTORS,
            kind,
            "agent kind",
            known=EXECUTORS,
            where=agent.locate(()) if agent else "",
        )
        executor: Executor = extensions.create(
            extensions.EXECUTORS, kind, Executor, make, name, dict(option_values), self.core
        )
        with extensions.package_code(extensions.EXECUTORS, kind):
            ensure_fields(executor, kind=str, supported_fields=(frozenset, set))
            if option_values.get("free") is True:
                executor.is_free = True  # type: ignore[attr-defined] # see `protocol.is_free`
            # An object that refuses this would get around the check.
            executor.perform = make_checked_perform(executor)  # type: ignore[method-assign]
        return executor


def agent_problems(executor: Executor) -> list[str]:
    """Return the problems that keep *executor* from starting.

    Raises:
        ConfigurationError: the agent comes from a package, and the package failed.
    """
    kind = executor.kind
    problems: list[str] = extensions.create(extensions.EXECUTORS, kind, list, executor.problems)
    return problems


def _has_provider_models(step: Step, kind: str) -> bool:
    """Return whether agents of *kind* have the models of the step's provider."""
    return step.provider is None or kind in (*PROVIDERS.get(step.provider, ()), "opencode")


def _refuse_options(
    agent: Agent | None, name: str, kind: str, form: type[Frozen], error: ValidationError
) -> None:
    """Raise every problem that *form* has found in the options of an agent."""
    raise_all(
        [
            ConfigurationError(
                f"agent kind {kind!r}: {problem.error.message}",
                where=agent.locate(problem.path) if agent else f"agents.{name}",
                hint=problem.error.hint,
            )
            for problem in find_problems(error, form, lambda _: "")
        ]
    )


def ensure_supported(step: Step, name: str, executor: Executor) -> None:
    """Check that *executor* supports every field that *step* sets, with its value.

    Raises:
        ConfigurationError: it would have to ignore a field, which you would not notice.
    """
    supported_fields = executor.supported_fields | EVERY_EXECUTOR
    defaults = Step(name=step.name)
    ignored_fields = sorted(
        field
        for field in Step.model_fields
        if field not in supported_fields and getattr(step, field) != getattr(defaults, field)
    )
    objections = _objections(step, executor)
    if ignored_fields:
        hint = f"it supports: {', '.join(sorted(supported_fields))}"
        if "agents" in ignored_fields:
            hint = f"only agent: claude has subagents; {hint}"
        objections.insert(0, Objection(", ".join(ignored_fields), hint))
    if objections:
        reasons = "; ".join(objection.reason for objection in objections)
        raise ConfigurationError(
            f"agent {name!r} (kind {executor.kind}) does not support {reasons}",
            where=f"step {step.name!r}",
            hint="; ".join(dict.fromkeys(objection.hint for objection in objections)),
        )


def _objections(step: Step, executor: Executor) -> list[Objection]:
    objection = writing_objection(step, executor) if step.expects == "change" else None
    if objection is not None and executor.kind not in OWN_WORD:
        return [objection]
    if not isinstance(executor, ValidatesSteps):
        return []
    objections = executor.objections(step)
    providers = executor.providers
    if step.provider is None or providers is None or step.provider in providers:
        return objections
    kinds = " or ".join((*PROVIDERS.get(step.provider, ()), "opencode"))
    reason = f"provider: {step.provider}, it has only models of {', '.join(sorted(providers))}"
    return [Objection(reason, f"write agent: {kinds}, or name another model"), *objections]


CLIENTS = tuple(project_files.CLIENTS)
"""The clients that `auto` looks for on PATH, in this order."""


class ChosenAgent(Struct, frozen=True):
    """An agent's name and the key or option that chose it."""

    name: str
    source: str


class AgentOverrides(Struct, frozen=True):
    """The values of ``--agent-prompt`` and ``--agent-step``; ``--agent`` sets ``agent.default``."""

    by_prompt: Mapping[str, str] = field(default_factory=dict)
    by_step: Mapping[str, str] = field(default_factory=dict)


def choose_agent(
    settings: Settings, step: Step, position: str, overrides: AgentOverrides | None = None
) -> ChosenAgent:
    """Return the agent for *step* at *position* (in a review, not the step's name).

    The first of these that is set wins: ``--agent-prompt``, ``--agent-step``, ``agent`` of the
    step, ``agent.prompts``, ``agent.roles`` by position and then by step, ``agent.default``.

    Raises:
        UnknownName: the agent is neither built in nor configured.
    """
    agent_overrides = overrides or AgentOverrides()
    candidates = _candidates(settings, step, position, agent_overrides)
    choice = next(ChosenAgent(name, source) for name, source in candidates if name is not None)
    names = known_agents(settings)
    if choice.name not in names:
        raise UnknownName("agent", choice.name, names, where=choice.source)
    return choice


def known_agents(settings: Settings) -> frozenset[str]:
    """Return every name that you can use for an agent."""
    return frozenset(BUILTIN_AGENTS) | settings.agents.keys()


def ensure_known_names(settings: Settings, overrides: AgentOverrides, workflow: Workflow) -> None:
    """Check that *workflow* has the names in ``--agent-step`` and ``--agent-prompt``.

    Raises:
        UnknownName: a name is missing, so the option would silently do nothing.
    """
    step_names = {step.name for step in workflow.own_steps}
    for name in overrides.by_step:
        if name not in step_names and OLD_ROLES.get(name) not in step_names:
            raise UnknownName("step", name, step_names, where="--agent-step")
    if not overrides.by_prompt:
        return
    folder = settings.prompts_dir
    prompts = set(prompt_files(settings, workflow).values())
    allowed_names = allowed_prompts(workflow, settings.router)
    prompts |= {relative_name(folder, name) for name in allowed_names}
    for prompt in overrides.by_prompt:
        if relative_name(folder, prompt) not in prompts:
            raise UnknownName("prompt", prompt, prompts, where="--agent-prompt")


def prompt_files(settings: Settings, workflow: Workflow) -> dict[str, str]:
    """Return the prompt file of each step of *workflow* that has one, by the step's name."""
    folder = settings.prompts_dir
    file_steps = (step for step in workflow.own_steps if step.text is None)
    return {step.name: relative_name(folder, step.prompt_name) for step in file_steps}


def resolve_auto(
    which: Callable[[str], str | None],
    env: Mapping[str, str],
    suits: Callable[[str], bool] = lambda _: True,
) -> str:
    """Return the agent that `auto` means on this machine; never the rehearsal.

    It is the first installed one that *suits*, or the first installed one if none does.

    Raises:
        ConfigurationError: no client is on PATH and no key is set.
    """
    installed = [client for client in CLIENTS if which(client) is not None]
    if env.get("ANTHROPIC_API_KEY"):
        installed.append("anthropic")
    if installed:
        return next(filter(suits, installed), installed[0])
    raise ConfigurationError(
        "agent 'auto': none of claude, codex, gemini, opencode is on PATH, and no "
        "ANTHROPIC_API_KEY is set",
        hint="install one of them (claude: npm install -g @anthropic-ai/claude-code; codex: "
        "npm install -g @openai/codex; gemini: npm install -g @google/gemini-cli; opencode: "
        "npm install -g opencode-ai), set the key, or name an agent in agent.default "
        "(--rehearse runs without any)",
    )


def _candidates(
    settings: Settings, step: Step, position: str, overrides: AgentOverrides
) -> Iterator[tuple[str | None, str]]:
    prompts_dir = settings.prompts_dir
    # A step with the text of its prompt has no file, and its name need not match one.
    prompt = None if step.text is not None else relative_name(prompts_dir, step.prompt_name)
    yield _find_by_prompt(overrides.by_prompt, prompt, prompts_dir), "--agent-prompt"
    yield _find_by_role(overrides.by_step, step.name), "--agent-step"
    yield step.agent, f"agent of step {step.name!r}"
    yield _find_by_prompt(settings.agent.prompts, prompt, prompts_dir), "agent.prompts"
    yield _find_by_role(settings.agent.roles, position), "agent.roles"
    yield _find_by_role(settings.agent.roles, step.name), "agent.roles"
    yield settings.agent.default, "agent.default"


def _find_by_prompt(table: Mapping[str, str], prompt: str | None, prompts_dir: Path) -> str | None:
    for name, agent in table.items():
        if prompt is not None and relative_name(prompts_dir, name) == prompt:
            return agent
    return None


def _find_by_role(table: Mapping[str, str], name: str) -> str | None:
    if name in table:
        return table[name]
    # A step that is really called "loop" matched above; "loop" as an old role matches here.
    return next((agent for role, agent in table.items() if OLD_ROLES.get(role) == name), None)


def list_agent_steps(settings: Settings, workflow: Workflow) -> Iterator[Step]:
    """Yield every step of *workflow*, and the fallback steps of tasks."""
    yield from workflow.every_step
    graphs = TASK_GRAPHS.get() if workflow.tasks else None
    if graphs is not None and (change := graphs.fallback_step(settings)) is not None:
        yield from map(change, workflow.steps)


def find_unlimited_clients(
    settings: Settings, agents: ConfiguredAgents, workflow: Workflow
) -> dict[str, list[str]]:
    """Return the clients that no time limit stops if they hang, with their steps in *workflow*.

    Only clients are listed: a client waits for a service, and a program ends by itself.
    """
    run_limits = (settings.run.step_timeout_s, settings.limits.seconds)
    flow_ms = workflow.whole_graph.timeout_ms if workflow.nodes else None
    steps: dict[str, list[str]] = {}
    if any(limit is not None for limit in (*run_limits, flow_ms)):
        return steps
    for step in list_agent_steps(settings, workflow):
        full_step = with_defaults(step, settings.step_defaults)
        has_limit = full_step.timeout_s or full_step.idle_timeout_s
        with suppress(ConfigurationError):  # another check reports it
            name, executor = agents.choose(full_step, step.name)
            if isinstance(executor, HasPermissions) and not has_limit:
                steps.setdefault(name, []).append(step.name)
    return steps
