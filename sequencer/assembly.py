"""From settings to a run that works: the only module that knows every concrete class.

A new store, executor or workflow source is one module and one line in a literal here; a
package of somebody else's adds to them through entry points. Executors are imported when
a step needs them, so that looking at a run loads none.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from sequencer.engine.attempt import Observer
from sequencer.engine.performing import Performer
from sequencer.engine.run import Run
from sequencer.errors import ConfigurationError, StateRefused, UnknownName
from sequencer.executors.process import ProcessCore
from sequencer.executors.protocol import EVERY_EXECUTOR, Executor
from sequencer.executors.redaction import Redaction
from sequencer.logs import FileLogs
from sequencer.model.head import Head
from sequencer.model.names import slug
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow
from sequencer.resolution.prompts import PromptReader, prompt_path
from sequencer.resolution.registry import with_defaults
from sequencer.resolution.resolver import place
from sequencer.settings.agents import AgentOverrides, choose_agent, resolve_auto
from sequencer.settings.reader import KeyPath
from sequencer.settings.settings import Agent, Settings, load
from sequencer.settings.sources import Given
from sequencer.store.clock import utc_now
from sequencer.store.file import FileStore
from sequencer.store.headfile import read_head
from sequencer.store.migration import migrate
from sequencer.store.protocol import Store


class Recipe(NamedTuple):
    """Where the two classes of an executor are, and whether it starts processes."""

    module: str
    executor: str
    options: str
    needs_core: bool = True


def _client(kind: str) -> Recipe:
    name = kind.capitalize()
    return Recipe(f"sequencer.executors.{kind}", f"{name}Executor", f"{name}Options")


EXECUTORS: Mapping[str, Recipe] = {
    "anthropic": Recipe("sequencer.executors.messages_api", "MessagesExecutor", "MessagesOptions"),
    "claude": _client("claude"),
    "codex": _client("codex"),
    "command": _client("command"),
    "gemini": _client("gemini"),
    "opencode": _client("opencode"),
    "rehearsal": _client("rehearsal")._replace(needs_core=False),
    "scripted": _client("scripted")._replace(needs_core=False),
}
"""Kind of agent -> how it is made. An entry point of ``sequencer.executors`` is a function
``(name, options, core) -> Executor`` that takes the options as they were written."""


def _file_store(settings: Settings, state_path: Path, to_head: Callable[..., Head]) -> Store:
    options = settings.store
    return FileStore(
        state_path,
        ttl_s=options.ttl_s,
        allow_network_fs=options.allow_network_fs,
        rotate_bytes=options.journal.rotate_bytes,
        keep=options.journal.keep,
        migrate=to_head,
    )


STORES: Mapping[str, Callable[[Settings, Path, Callable[..., Head]], Store]] = {
    "file": _file_store,
}
"""``store.kind`` -> how it is made."""


def _plugin(group: str, name: str) -> Any | None:
    found = next(iter(entry_points(group=group, name=name)), None)
    return None if found is None else found.load()


def _plugin_names(group: str) -> set[str]:
    return {entry.name for entry in entry_points(group=group)}


@dataclass(frozen=True)
class ConfiguredAgents:
    """Builds executors from ``agents:`` and the built-in names; see `performing.Agents`."""

    settings: Settings
    overrides: AgentOverrides
    environment: Mapping[str, str]

    @cached_property
    def core(self) -> ProcessCore:
        """Return the process core that all agents of this process share."""
        return ProcessCore()

    @cached_property
    def _built(self) -> dict[str, Executor]:
        return {}

    def choose(self, step: Step, position: str) -> tuple[str, Executor]:
        """See `performing.Agents.choose`."""
        chosen = choose_agent(self.settings, step, position, self.overrides)
        name = chosen.name
        if name == "auto" and "auto" not in self.settings.agents:
            name = resolve_auto(shutil.which, self.environment)
        executor = self.build(name)
        ensure_honoured(step, name, executor)
        return name, executor

    def warm_up(self) -> None:
        """See `performing.Agents.warm_up`."""
        self.core.prepare()

    def close(self) -> None:
        """See `performing.Agents.close`."""
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
        written = dict(agent.options) if agent else {}
        recipe = EXECUTORS.get(kind)
        try:
            if recipe is None:
                return self._make_plugin(name, kind, agent, written)
            module = import_module(recipe.module)
            options = getattr(module, recipe.options).model_validate(written)
        except ValidationError as error:
            raise _wrong_options(agent, name, kind, error) from None
        cls = getattr(module, recipe.executor)
        made: Executor = cls(name, options, self.core) if recipe.needs_core else cls(name, options)
        return made

    def _make_plugin(
        self, name: str, kind: str, agent: Agent | None, written: dict[str, Any]
    ) -> Executor:
        make = _plugin("sequencer.executors", kind)
        if make is None:
            known = EXECUTORS.keys() | _plugin_names("sequencer.executors")
            where = agent.locate(()) if agent else None
            raise UnknownName("agent kind", kind, known, where=where)
        made: Executor = make(name, written, self.core)
        return made


def _wrong_options(agent: Any, name: str, kind: str, error: ValidationError) -> ConfigurationError:
    issue = error.errors(include_url=False)[0]
    path: KeyPath = tuple(issue["loc"])
    where = agent.locate(path) if agent else f"agents.{name}"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return ConfigurationError(f"agent kind {kind!r}: {issue['msg']}{more}", where=where)


def ensure_honoured(step: Step, name: str, executor: Executor) -> None:
    """Return if *executor* honours every field that *step* sets.

    Raises:
        ConfigurationError: it would have to ignore one, which nobody would notice.
    """
    honoured = executor.supported_fields | EVERY_EXECUTOR
    defaults = Step(name=step.name)
    ignored = sorted(
        field
        for field in Step.model_fields
        if field not in honoured and getattr(step, field) != getattr(defaults, field)
    )
    if ignored:
        raise ConfigurationError(
            f"agent {name!r} (kind {executor.kind}) can't honour {', '.join(ignored)}",
            where=f"step {step.name!r}",
            hint=f"it honours: {', '.join(sorted(honoured))}",
        )


@dataclass(frozen=True)
class PromptFolder:
    """The prompts of a project; see `performing.Prompts`."""

    reader: PromptReader

    def read(self, name: str) -> str:
        """See `performing.Prompts.read`."""
        return self.reader.read(name)

    def read_for(self, step: Step, executor: Executor) -> str:
        """See `performing.Prompts.read_for`."""
        # A rehearsal stands in for a command whose step needs no prompt.
        stands_in = executor.kind in ("rehearsal", "scripted") and step.executor is not None
        is_optional = step.prompt is None and (executor.kind == "command" or stands_in)
        if is_optional:
            try:
                prompt_path(self.reader.folder, step.prompt_name)
            except UnknownName:
                return ""
        return self.reader.read(step.prompt_name)


def workflow_for(settings: Settings, head: Head | None) -> Workflow:
    """Return the workflow of the run with *head*, or of one that is still to begin.

    What was asked for explicitly (file, environment, flag) counts as asked, and a run that
    was begun with something else refuses it. What nobody asked for is as the run has it.
    """
    is_default = settings.sources[("workflow", "name")].kind == "default"
    name = head.workflow_name if head is not None and is_default else settings.workflow.name
    workflow = settings.registry.get(name)
    every = settings.workflow.review_every_n
    if every is not None and workflow.review is not None:
        return workflow.with_review_every(every)
    if every is not None and every > 0 and _is_flag(settings, "review_every_n"):
        raise ConfigurationError(
            f"workflow {name!r} has no review step",
            where="--review-every",
            hint="'sequencer show' lists the workflows that have one",
        )
    began_with = (head.params if head is not None else {}).get("review_every_n_cycles")
    if workflow.review is not None and not workflow.review_every and type(began_with) is int:
        return workflow.with_review_every(began_with)
    return workflow


def _is_flag(settings: Settings, key: str) -> bool:
    source = settings.sources.get(("workflow", key))
    return source is not None and source.kind == "flag"


def state_path_of(settings: Settings, run: str | None) -> Path:
    """Return the path of a run's head; the default run's is ``state_file`` itself."""
    if run is None:
        return settings.state_file
    return settings.state_file.parent / "runs" / slug(run) / settings.state_file.name


def make_store(settings: Settings, run: str | None) -> Store:
    """Return the store of a run.

    Raises:
        UnknownName: there is no store of that kind.
    """
    kind = settings.store.kind
    make = STORES.get(kind) or _plugin("sequencer.stores", kind)
    if make is None:
        known = STORES.keys() | _plugin_names("sequencer.stores")
        raise UnknownName("store kind", kind, known, where="store.kind")

    def to_head(raw: dict[str, Any]) -> Head:
        workflow = workflow_for(settings, None)
        legacy_name = raw.get("workflow_name")
        if isinstance(legacy_name, str) and legacy_name in settings.registry.names:
            is_default = settings.sources[("workflow", "name")].kind == "default"
            workflow = settings.registry.get(legacy_name) if is_default else workflow
        return migrate(
            raw,
            new_run_id=str(uuid.uuid4()),
            workflow_name=workflow.name,
            digest=workflow.digest(),
            params=workflow.params,
            expected_step_for=lambda index: place(workflow, index).step,
            at=utc_now(),
            cycle_length=len(workflow.steps),
        )

    store: Store = make(settings, state_path_of(settings, run), to_head)
    return store


@dataclass(frozen=True)
class Project:
    """Settings and everything that is made from them."""

    settings: Settings
    agents: ConfiguredAgents
    prompts: PromptFolder
    redaction: Redaction

    def run(self, name: str | None = None) -> Run:
        """Return the run called *name*, or the default run."""
        return Run(
            name,
            make_store(self.settings, name),
            self.settings.limits,
            lambda head: workflow_for(self.settings, head),
            lambda workflow, observer: self.performer(workflow, observer, name),
        )

    def performer(self, workflow: Workflow, observer: Observer, run: str | None) -> Performer:
        """Return what performs the steps of *workflow* in the run called *run*."""
        settings = self.settings
        return Performer(
            workflow=workflow,
            agents=self.agents,
            prompts=self.prompts,
            logs=self.logs(run, observer.notice),
            observer=observer,
            project=settings.project_dir,
            with_defaults=lambda step: with_defaults(step, settings.step_defaults),
            redact=self.redaction.hide_text,
            router=settings.router,
        )

    def logs(self, run: str | None, warn: Callable[[str], None]) -> FileLogs:
        """Return the step logs of the run called *run*."""
        return FileLogs(
            self.settings.logs_dir,
            self.settings.project_dir,
            run,
            warn=warn,
            redaction=self.redaction,
            max_bytes=self.settings.logs.max_bytes,
        )

    def run_names(self) -> list[str]:
        """Return the names of the named runs that exist, as ``--run`` takes them."""
        folder = self.settings.state_file.parent / "runs"
        if not folder.is_dir():
            return []
        state = self.settings.state_file.name
        return sorted(_run_name(entry / state) or entry.name for entry in folder.iterdir())


def _run_name(state_path: Path) -> str | None:
    """Return what the run in *state_path*'s folder is called, if its head can be read."""
    try:
        name = (read_head(state_path).content or {}).get("run_name")
    except (OSError, StateRefused):
        return None
    return name if isinstance(name, str) and slug(name) == state_path.parent.name else None


def _all_variables(settings: Settings, env: Mapping[str, str]) -> dict[str, str]:
    """Return every variable that an agent may see; those that are secret must be hidden."""
    found = dict(env)
    for agent in settings.agents.values():
        given = agent.options.get("env")
        if isinstance(given, dict):
            # Two agents may give one name different values; both have to be known.
            found |= {f"{agent.name}_{name}": str(value) for name, value in given.items()}
    return found


def open_project(
    path: str | Path = ".",
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[KeyPath, Given] | None = None,
    overrides: AgentOverrides | None = None,
) -> Project:
    """Return the project that the folder *path* lies in.

    Raises:
        ConfigurationError: its configuration is wrong; everything wrong with it is named.
    """
    env = dict(os.environ) if environment is None else dict(environment)
    settings = load(Path(path), config=config, env=env, flags=flags)
    return Project(
        settings,
        ConfiguredAgents(settings, overrides or AgentOverrides(), env),
        PromptFolder(PromptReader(settings.prompts_dir)),
        Redaction.of(_all_variables(settings, env)),
    )


def open_run(path: str | Path = ".", name: str | None = None, **options: Any) -> Run:
    """Return the run called *name* (None: the default run) of the project at *path*.

    *options* are those of `open_project`.
    """
    return open_project(path, **options).run(name)
