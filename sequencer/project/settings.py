"""The settings of a project: every value checked, resolved, and with its source.

`load` returns consistent settings, or raises with every problem that it found. It reads only
the configuration file. It does not check that prompts exist, that clients are installed, or
that an agent's options suit its kind: the code that uses them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from msgspec import Struct

from sequencer import extensions
from sequencer.errors import ConfigurationError, UnknownName, UnsafePath, raise_all
from sequencer.executors.prices import ModelPrice
from sequencer.files import yamlfile as reader
from sequencer.files.keys import annotation_at, find_problems, iter_leaves, known_keys
from sequencer.files.textfile import find_config, find_path_problem, is_linked_outside, resolve_path
from sequencer.files.yamlfile import KeyPath
from sequencer.frozen.fields import ValidationError
from sequencer.model.limits import RunLimits
from sequencer.model.workflow import Workflow
from sequencer.project import legacy
from sequencer.project.disabled_keys import downgrade_to_notices, remove_unavailable
from sequencer.project.enabled_plugins import list_disabled, list_enabled
from sequencer.project.inline_graphs import inline_graphs
from sequencer.project.schema import (
    AgentSelection,
    CommitOptions,
    LogOptions,
    RunDefaults,
    Schema,
    StoreOptions,
    WorkflowChoice,
    schema_with,
)
from sequencer.project.sections import LocatedError, section, section_value
from sequencer.project.setting_checks import Check
from sequencer.project.sources import (
    DEFAULT,
    RENAMED,
    SECRET_KEY,
    FlagValue,
    Layers,
    Source,
    add_commit_notices,
    add_environment,
    add_file,
    add_former_agent_notices,
    choose_own_steps,
    convert_words,
    flatten,
    inherit_cadence,
)
from sequencer.project.store_kinds import COPY, STORE_KIND, StoreKind, store_kind
from sequencer.project.task_graphs import TASK_GRAPHS
from sequencer.workflows.definitions import Composition
from sequencer.workflows.registry import BuiltinPrompts, BuiltinWorkflows, Registry
from sequencer.workflows.router import RouterSettings

HIDDEN = "(hidden)"
WITH_SECRETS = ("agents", "activity", "webhooks")
"""Sections where someone may have written a secret, although secrets don't belong there."""
_SCHEMA_FIELDS = (
    *("workflow", "router", "agent", "hooks", "limits", "prices", "store", "commit"),
    *("logs", "run", "file_mode", "agents_may_decide", "worktree", "setup", "setup_timeout_s"),
)
"""Fields that the settings copy from the schema."""
_LAYER_FIELDS = ("sources", "values", "unavailable")
"""Fields that they copy from the layers."""


class Agent(Struct, frozen=True):
    """A named executor as written in the file; its kind decides which options are valid."""

    name: str
    kind: str
    options: Mapping[str, Any]
    """As written; never shown, because a value may be an API key."""
    locate: Callable[[KeyPath], str]
    """From an option's path (``("argv", 0)``; empty: the entry) to file, line and key."""

    def __repr__(self) -> str:
        """Return the name and the kind: options may be secret."""
        return f"Agent(name={self.name!r}, kind={self.kind!r})"


class Settings(Struct, frozen=True, kw_only=True):
    """The configuration of a project; paths are absolute."""

    config_path: Path | None
    config_looks: tuple[int, ...] | None
    """The value of `stat_signature` for that file before it was read."""
    project_dir: Path
    """Folder of the file, or where the search started; agents work here."""
    prompts_dir: Path
    state_file: Path
    logs_dir: Path
    file_mode: str
    """Octal."""
    workflow: WorkflowChoice
    builtin_prompts: BuiltinPrompts
    registry: Registry
    workflows: Mapping[str, Workflow]
    """The configured workflows; `registry` has the built-in ones too."""
    router: RouterSettings
    agent: AgentSelection
    agents: Mapping[str, Agent]
    hooks: tuple[str, ...]
    """As written, relative to `project_dir`; for `project.load_hooks`."""
    limits: RunLimits
    prices: Mapping[str, ModelPrice]
    step_defaults: Mapping[str, Any]
    """Step fields for `workflows.registry.with_defaults`."""
    store: StoreOptions
    commit: CommitOptions
    worktree: bool
    setup: tuple[tuple[str, ...], ...]
    setup_timeout_s: float
    logs: LogOptions
    sections: Mapping[str, Any]
    """The sections of plug-ins that are set, by name; see `section`."""
    run: RunDefaults
    agents_may_decide: tuple[str, ...]
    notices: tuple[str, ...]
    """One line for each key that was accepted but has no effect."""
    sources: Mapping[KeyPath, Source]
    """The source of each value that is set."""
    values: Mapping[str, Any]
    """The values as written, with all layers merged."""
    written: Mapping[str, Any]
    """The values of the file alone, under the current keys."""
    unavailable: Mapping[KeyPath, ConfigurationError] = MappingProxyType({})
    """If runs are only read: the keys that were left out because no plug-in provides them."""

    def __repr__(self) -> str:
        """Return only the paths: a value may be a secret."""
        return f"Settings(config_path={self.config_path!r}, project_dir={self.project_dir!r})"

    def section(self, name: str) -> Any:
        """Return the plug-in section called *name*, or its default.

        Raises:
            UnknownName: no plug-in has such a section.
        """
        configured = self.sections.get(name)
        return section(name).default() if configured is None else configured

    @property
    def store_kind(self) -> StoreKind:
        """Return the kind of store that runs have; see `store_kinds.store_kind`."""
        return store_kind(self.store.kind) if self.missing_store is None else COPY

    @property
    def missing_store(self) -> ConfigurationError | None:
        """Return why the configured store is missing (runs are then read from copies), or None."""
        return self.unavailable.get(STORE_KIND)

    def default_workflow(self) -> Workflow:
        """Return the workflow that the key `workflow` names, with its review interval."""
        workflow = self.registry.get(self.workflow.name)
        interval = self.workflow.review_every_n
        if interval is None or workflow.review is None:
            return workflow
        return workflow.with_review_every(interval)

    def find_workflow(self, name: str, *, where: str | None = None) -> Workflow:
        """Return the workflow called *name*; *where*: the place that names it, for the error.

        Raises:
            ConfigurationError: there is no such workflow, or it was left out; see `unavailable`.
        """
        for path, error in self.unavailable.items():
            if path[:2] == ("workflows", name):
                raise error
        try:
            return self.registry.get(name, where=where)
        except UnknownName as error:
            if self.config_path is None:
                place = f"there is no orchestration.yaml in {self.project_dir} or above it"
                error.hint = f"{place}; restore it, or name your file with --config"
            raise

    def get_source(self, *path: str) -> Source:
        """Return the source of the value at *path*; `DEFAULT` if no layer sets it."""
        return self.sources.get(path, DEFAULT)

    def cost_caps(self, workflow: Workflow) -> Iterator[str]:
        """Yield the keys of the cost caps that apply to a run of *workflow*."""
        if self.limits.cost_usd is not None:
            yield "limits.cost_usd"
        if self.run.max_cost_usd is not None:
            is_flag = self.get_source("run", "max_cost_usd").kind == "flag"
            yield "--max-cost" if is_flag else "run.max_cost_usd"
        if workflow.tasks and (graphs := TASK_GRAPHS.get()) is not None:
            yield from graphs.cost_caps(self, workflow)

    def rows(self) -> Iterator[tuple[KeyPath, Any, Source]]:
        """Yield (path, value, source) in the order of the schema.

        Values are as written, except that text for a boolean or a number is converted.

        The value of a free key called key, token, secret or password is hidden. The schema's
        own keys need no hiding: they hold names of variables and files.
        """
        defaults = dict(iter_leaves(Schema))
        order = {name: index for index, name in enumerate(schema_with(self.values).model_fields)}
        # A free mapping with entries is listed entry by entry.
        short_keys = {path[0] for path in RENAMED if len(path) == 1}
        unset_paths = [
            path
            for path in defaults
            if path[0] not in short_keys
            and _is_known(str(path[0]))
            and not any(key[: len(path)] == path for key in self.sources)
        ]
        for path, source in sorted(
            {**self.sources, **dict.fromkeys(unset_paths, DEFAULT)}.items(),
            key=lambda item: (order[str(item[0][0])], *map(str, item[0])),
        ):
            raw_value = None if source is DEFAULT else _look_up(self.values, path)
            typed_value = convert_words(raw_value, annotation_at(Schema, path))
            value = defaults[path] if source is DEFAULT else typed_value
            is_free = path[-1] not in known_keys(Schema, path[:-1]) and path[0] in WITH_SECRETS
            is_secret = is_free and SECRET_KEY.fullmatch(str(path[-1])) is not None
            yield path, HIDDEN if is_secret else value, source


def _is_known(key: str) -> bool:
    """Return whether *key* belongs to no plug-in, or to an available one."""
    plugin = extensions.find_plugin(extensions.SECTIONS, key)
    return plugin is None or extensions.is_available(plugin)


def load(
    start: Path,
    *,
    config: Path | None = None,
    env: Mapping[str, str],
    flags: Mapping[KeyPath, FlagValue] | None = None,
    reads: bool = False,
) -> Settings:
    """Return the settings of the project that contains *start*.

    *flags* are keyed by key path (``("limits", "steps")``); a value of None was not given. If
    the caller only *reads* runs, disabled and missing plug-ins are left out, with a notice.

    Raises:
        ConfigurationError: the file can't be read, or the settings have one problem.
        ConfigurationErrors: the settings have several problems, in the order of the file.
    """
    config_path = find_config(start, config)
    project_dir = config_path.parent if config_path else start.resolve()
    signature = stat_signature(config_path)
    layers, file_values = _merge_layers(config_path, env, flags or {})
    schema, problems = _validate(layers)
    paths = _resolve_paths(project_dir, schema, layers, problems)
    prompts, sections = _builtin_prompts(schema), partial(section_value, schema)
    workflows = _workflows(schema, prompts, layers, problems)
    lists = inline_graphs(schema, sections, layers, config_path or project_dir, problems)
    flows = _flows(schema, project_dir, layers, problems)
    registry = Registry(workflows, prompts, flows, lists=lists, sections=sections)
    workflows |= {name: graph.workflow for name, graph in lists.items()}
    problems += Check(layers, schema, registry, paths["prompts_dir"]).problems()
    raise_all(_list_errors(problems, layers, reads=reads))
    schema_values: dict[str, Any] = {name: getattr(schema, name) for name in _SCHEMA_FIELDS} | paths
    layer_values: dict[str, Any] = {
        name: MappingProxyType(getattr(layers, name)) for name in _LAYER_FIELDS
    }
    return Settings(
        config_path=config_path,
        config_looks=signature,
        project_dir=project_dir,
        **schema_values,
        sections=MappingProxyType(_sections(schema)),
        builtin_prompts=prompts,
        registry=registry,
        workflows=MappingProxyType(workflows),
        agents=MappingProxyType(_agents(schema, layers)),
        step_defaults=MappingProxyType(schema.default_fields),
        notices=tuple(layers.notices),
        **layer_values,
        written=MappingProxyType(file_values),
    )


def _list_errors(
    problems: list[LocatedError], layers: Layers, *, reads: bool
) -> list[ConfigurationError]:
    """Return the errors of *problems* and of outdated keys, in the order of the file.

    With *reads*, problems that a missing plug-in may cause become notices in *layers* instead.
    """
    if layers.document is not None:
        problems = [*problems, *legacy.key_problems(layers.document)]
    if reads:
        problems = downgrade_to_notices(problems, layers)
    return [error for _, error in sorted(problems, key=lambda item: layers.position(item[0]))]


def _builtin_prompts(schema: Schema) -> BuiltinPrompts:
    return BuiltinPrompts(schema.supervisor_prompt, schema.main_prompt, schema.reviewer_prompt)


def _sections(schema: Schema) -> dict[str, Any]:
    """Return the sections of plug-ins that are set."""
    names = schema.model_fields_set & {*schema.sections()}
    sections = {name: getattr(schema, name) for name in names}
    return {name: value for name, value in sections.items() if value is not None}


def stat_signature(path: Path | None) -> tuple[int, ...] | None:
    """Return a value that differs after the file at *path* has changed; None: no such file."""
    try:
        file_stat = None if path is None else path.stat()
    except OSError:
        return None
    if file_stat is None:
        return None
    return file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns


def _merge_layers(
    config_path: Path | None, env: Mapping[str, str], flags: Mapping[KeyPath, FlagValue]
) -> tuple[Layers, dict[str, Any]]:
    """Return the merged layers of values for `load`, and the values of the file alone."""
    layers, is_old = Layers(), any(name.startswith(legacy.OWN_VARIABLES) for name in env)
    if config_path is not None:
        layers.document = document = reader.read(config_path)
        # A key that hoidn/orchestration also has may come from a file of that program.
        is_old = is_old or not document.data.keys() <= Schema.model_fields.keys() - legacy.OWN_KEYS
        add_file(layers, document, set(legacy.add_old_keys(layers, document)) if is_old else ())
    file_values = cast("dict[str, Any]", _copy_mappings(layers.values))
    add_environment(layers, env)
    for path, option in flags.items():
        for leaf_path, value in flatten(option.value, path):
            layers.set_value(leaf_path, value, Source("flag", name=option.flag))
    inherit_cadence(layers)
    choose_own_steps(layers)
    add_commit_notices(layers)
    add_former_agent_notices(layers)
    if is_old:
        legacy.add_variable_notices(layers, env)
    return layers, file_values


def _copy_mappings(value: Any) -> Any:
    """Return *value* with copied mappings; the values in them are never changed in place."""
    return {k: _copy_mappings(v) for k, v in value.items()} if isinstance(value, dict) else value


def _resolve_paths(
    project_dir: Path, schema: Schema, layers: Layers, problems: list[LocatedError]
) -> dict[str, Path]:
    """Return the absolute paths; problems are added to *problems*."""
    paths: dict[str, Path] = {}
    for key in ("prompts_dir", "state_file", "logs_dir"):
        where = layers.format_location((key,))
        try:
            paths[key] = resolve_path(project_dir, getattr(schema, key), where)
        except ConfigurationError as error:
            problems.append(((key,), error))
            paths[key] = project_dir
            continue
        source = layers.sources.get((key,), DEFAULT)
        is_chosen = source.kind in ("environment", "flag")
        if reason := find_path_problem(key, paths, project_dir, is_chosen=is_chosen):
            hint = f"such as {Schema.model_fields[key].default}"
            problems.append(((key,), ConfigurationError(reason, where=where, hint=hint)))
    return paths


def _validate(layers: Layers) -> tuple[Schema, list[LocatedError]]:
    """Return the settings without the invalid values, and the problems.

    Names in the other values are still checked, so that one run of ``check`` shows every
    problem of a file.
    """
    extensions.configure(list_disabled(layers.values), list_enabled(layers.values))
    problems = remove_unavailable(layers)
    values = layers.values
    schema = schema_with(values)
    is_first_round = True
    while True:
        try:
            return schema.model_validate(values), problems
        except ValidationError as error:
            for problem in find_problems(error, schema, layers.locate, layers.origin):
                # Missing in a later round: this function removed it, and has reported why.
                if is_first_round or not problem.is_missing:
                    problems.append((problem.path, problem.error))
                # Without its kind, a workflow would be checked as one of another kind.
                is_kind = problem.path[:1] == ("workflows",) and problem.path[2:] == ("kind",)
                values = _prune(values, problem.path[:2] if is_kind else problem.path)
            is_first_round = False


def _prune(values: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return a copy of *values* without the value at *path*, or else without its parent."""
    for length in range(len(path), 0, -1):
        remainder = _without_key(values, path[:length])
        if remainder != values:
            return cast("dict[str, Any]", remainder)
    return {}


def _without_key(values: Any, path: KeyPath) -> Any:
    key, child_keys = path[0], path[1:]
    if isinstance(values, dict) and key in values:
        if child_keys:
            return {**values, key: _without_key(values[key], child_keys)}
        return {name: value for name, value in values.items() if name != key}
    # A list never loses an item: the indexes of later items would no longer match the file.
    if isinstance(values, list) and isinstance(key, int) and child_keys and key < len(values):
        return [*values[:key], _without_key(values[key], child_keys), *values[key + 1 :]]
    return values


def _workflows(
    schema: Schema, prompts: BuiltinPrompts, layers: Layers, problems: list[LocatedError]
) -> dict[str, Workflow]:
    """Return the configured workflows; problems are added to *problems*."""

    def locate(path: KeyPath) -> str:
        return layers.format_location(("workflows", *path))

    entries = {
        name: entry
        for name, entry in schema.workflows.items()
        if entry.file is None and entry.inline is None
    }
    if not entries:
        return {}
    composition = Composition(entries, BuiltinWorkflows(prompts), locate)
    problems += [(("workflows", *path), error) for path, error in composition.problems]
    return composition.workflows


def _flows(
    schema: Schema, project_dir: Path, layers: Layers, problems: list[LocatedError]
) -> dict[str, Path]:
    """Return the files of the configured flowcharts; problems are added to *problems*."""
    files: dict[str, Path] = {}
    for name, entry in schema.workflows.items():
        if entry.file is None:
            continue
        path = ("workflows", name)
        where = layers.format_location(path)
        try:
            files[name] = resolve_path(project_dir, entry.file, where)
        except ConfigurationError as error:
            problems.append((path, error))
            continue
        if not files[name].is_file():
            message = f"there is no file {entry.file!r}"
            problems.append((path, ConfigurationError(message, where=where)))
        elif is_linked_outside(files[name], project_dir):
            message = f"a link leads {entry.file!r} out of the project"
            problems.append((path, UnsafePath(message, where=where, hint="name the file itself")))
    return files


def _agents(schema: Schema, layers: Layers) -> dict[str, Agent]:
    def agent(name: str) -> Agent:
        entry = schema.agents[name]

        def locate(path: KeyPath) -> str:
            return layers.format_location(("agents", name, *path))

        return Agent(name, entry.kind or name, MappingProxyType(entry.options), locate)

    return {name: agent(name) for name in schema.agents}


def _look_up(values: Mapping[str, Any], path: KeyPath) -> Any:
    """Return the value at *path*, which exists, in the nested *values*."""
    value: Any = values
    for part in path:
        value = value[part]
    return value
