"""The registry of extensions: named objects in groups, one group for each kind of extension.

`OURS` lists the objects of this package as text, so listing them imports nothing. Other packages
provide entry points in the groups of `OFFERED`. Their metadata is read only for a name that is not
in `OURS`, because that takes fifty times as long.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sequencer import packages
from sequencer.errors import (
    ConfigurationError,
    PackageFailed,
    SequencerError,
    UnknownName,
    to_machine_busy,
    to_storage_failed,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = "sequencer.kinds"
"""Kinds of workflows: functions from a workflow to its `SequenceKind`."""
EXECUTORS = "sequencer.executors"
"""Kinds of agents: functions that return an executor."""
STORES = "sequencer.stores"
"""Kinds of stores: `project.store_kinds.StoreKind`."""
HOOKS = "sequencer.hooks"
"""Objects with hooks, which are called around each step; see `hooks`."""
COMMANDS = "sequencer.commands"
"""Commands: `click.Command`, whose object is an `Invocation`."""
CONTRIBUTIONS = "sequencer.contributions"
"""Additions to a command: `cli.contributions.Contribution`, named COMMAND.NAME."""
RENDERERS = "sequencer.renderers"
"""Drawings of workflows: `cli.contributions.Renderer`."""
CHECKS = "sequencer.checks"
"""Checks: functions that take the `Project` and the name of a run and yield each `Diagnostic`. With
``looks=True`` they must not run anything from the project or contact a server. An installed package
is not part of the project: the user installed it, so it is loaded anyway."""
SECTIONS = "sequencer.sections"
"""Sections of orchestration.yaml: `project.sections.ConfigSection`."""
SINKS = "sequencer.sinks"
"""Kinds of activity sinks: functions from a name, `SinkOptions` and a `SinkPlace` to a
`plugins.posting.protocol.Sink`."""
STATUS_LINES = "sequencer.status_lines"
"""Lines of `status`: functions from a `Project` and a `Run` to (label, text) pairs. Used only from
packages that are enabled by name."""
CODE = "sequencer.code"
"""Code synchronization: functions from a `project.store_requests.CodeRequest` to a
`engine.workspace.Workspace`, or None."""
PAGES = "sequencer.pages"
"""Pages below /more: `plugins.web.pages.AddedPage`. The menu lists those of packages that are
enabled by name."""

# Groups for the plug-ins of this package; entry points of other packages in them are ignored.

TREES = "sequencer.trees"
"""Detectors of file changes: `engine.tree_state.MakeTree`."""
REPOSITORIES = "sequencer.repositories"
"""What the repository around a project may execute: `project.store_requests.RepositoryInspector`.
Shown before the project is trusted."""
WORKTREES = "sequencer.worktrees"
"""Worktrees for runs and tasks: `project.worktrees.WorktreeProvider`."""
WORKFLOW_KEYS = "sequencer.workflow_keys"
"""Keys of an entry of ``workflows:`` that replace its steps: the `workflows.finding.FileFormat`
whose `InlineFormat` has the key."""
FORMATS = "sequencer.formats"
"""Formats of workflow files: `workflows.finding.FileFormat`."""
TASKS = "sequencer.tasks"
"""Execution of graphs of tasks: `project.task_graphs.TaskGraphs`."""
POSTING = "sequencer.posting"
"""Posting of results, by the section that configures it: functions from a `Project` to a
`project.posting.Posting`, or None."""
SCHEDULERS = "sequencer.schedulers"
"""Schedulers, by the section that configures them: `project.scheduler.Scheduler`."""
SYSTEM_PROMPTS = "sequencer.system_prompts"
"""System prompts for steps with `system_from_labels`: functions from `Settings` to their names."""
COMMENT_TOOLS = "sequencer.comment_tools"
"""Tools that post comments, which steps with ``no_comment`` do not get: functions from `Settings`
to their names."""

_T = TypeVar("_T")
_VALUE = re.compile(r"\s*\w+(\.\w+)*\s*(:\s*\w+(\.\w+)*\s*)?(\[[^]]*\]\s*)?")
"""The value of an entry point: ``MODULE:NAME``, perhaps with extras."""
_PLUGINS = "sequencer.plugins"
_PLUGINS_DIR = Path(__file__).with_name("plugins")
OURS: Mapping[str, Mapping[str, str]] = {
    KINDS: {},
    TREES: {"git": "git.code.attempt_changes:tree_in_git"},
    EXECUTORS: {},
    STORES: {"git": "git.state.kind:GIT", "temporal": "temporal.kind:TEMPORAL"},
    CONTRIBUTIONS: {
        "tick.all": "schedules.contributions:ALL",
        "report.gantt": "drawing.contributions:GANTT",
        "report.metrics": "metrics.contributions:METRICS",
        "report.page": "web.contributions:PAGE",
        "plan.request": "requests.contributions:REQUESTED",
        "plan.commit": "git.contributions:COMMIT",
    },
    RENDERERS: {"sequencer": "drawing.contributions:RENDERER"},
    WORKTREES: {"git": "git.code.project_trees"},
    FORMATS: {"tasks": "teams.lists:FORMAT"},
    WORKFLOW_KEYS: {"tasks": "teams.lists:FORMAT", "size": "teams.lists:FORMAT"},
    TASKS: {"teams": "teams.project_tasks:TASK_GRAPHS"},
    SECTIONS: {
        "routing": "requests.section:SECTION",
        "schedules": "schedules.section:SECTION",
        "activity": "posting.section:SECTION",
        "webhooks": "web.section:SECTION",
        "teams": "teams.section:SECTION",
    },
    SYSTEM_PROMPTS: {"routing": "requests.section:get_system_prompts"},
    COMMENT_TOOLS: {"activity": "posting.section:list_comment_tools"},
    POSTING: {"activity": "posting.posting:build_posting"},
    SCHEDULERS: {"schedules": "schedules.schedules"},
    CHECKS: {
        "git": "git.check:check_project",
        "schedules": "schedules.check:check_project",
        "requests": "requests.project_requests:check_project",
        "web": "web.webhook_checks:check_project",
    },
    REPOSITORIES: {"git": "git.process:INSPECTOR"},
    CODE: {
        "store": "git.code.workspace:open_store_workspace",
        "attempts": "git.code.attempt_refs:open_attempt_workspace",
    },
}
"""The objects of this package: group -> name -> ``MODULE:NAME`` below `sequencer.plugins`."""
PLUGINS = frozenset(
    place.partition(".")[0] for places in OURS.values() for place in places.values()
)
"""The plug-ins of this package; each is a folder below `sequencer.plugins`."""
OFFERED: Mapping[str, str | None] = {
    KINDS: None,
    EXECUTORS: None,
    STORES: "sequencer.project.store_kinds:StoreKind",
    HOOKS: "builtins:object",
    COMMANDS: "click:Command",
    CONTRIBUTIONS: "sequencer.cli.contributions:Contribution",
    RENDERERS: "sequencer.cli.contributions:Renderer",
    CHECKS: None,
    SECTIONS: "sequencer.project.sections:ConfigSection",
    SINKS: None,
    STATUS_LINES: None,
    CODE: None,
    PAGES: "sequencer.plugins.web.pages:AddedPage",
}
"""Group that packages can add to -> the class of its objects; None: they are functions."""


class _Enabled:
    """Which plug-ins and packages this process may use."""

    disabled: frozenset[str] = frozenset()
    enabled: frozenset[str] = frozenset()


_ENABLED = _Enabled()


_MISSING_DEPENDENCY: dict[str, str] = {}
"""Plug-ins that could not be loaded -> the missing plug-in that they import."""


class PluginUnavailable(ConfigurationError):
    """Something needs a plug-in or a package that is disabled or not installed."""

    def __init__(self, what: str, plugin: str, *, where: str | None = None) -> None:
        """Refuse *what*, which needs *plugin*: a plug-in of this package, or a package."""
        plugin = _MISSING_DEPENDENCY.get(plugin, plugin)
        is_ours, is_disabled = plugin in PLUGINS, normalize_name(plugin) in _ENABLED.disabled
        super().__init__(
            f"{what} needs the {'plug-in' if is_ours else 'package'} {plugin!r}, which is "
            + ("disabled" if is_disabled else "not installed"),
            where=where,
            hint=_enable_hint(plugin) if is_disabled else _install_hint(plugin),
        )


def _enable_hint(plugin: str) -> str:
    variable = f"SEQUENCER_PLUGINS__{normalize_name(plugin).upper().replace('-', '_')}"
    if variable in os.environ:
        # The variable overrides the file.
        return f"unset the variable {variable}, or set it to 'on'"
    return f"set 'plugins: {{{plugin}: on}}' in orchestration.yaml (or {variable}=on)"


def _install_hint(plugin: str) -> str:
    if plugin in PLUGINS:
        return "reinstall step-sequencer"
    return f"install it, or remove it from 'plugins:': pip install {plugin}"


def configure(disabled: Iterable[str], enabled: Iterable[str] = ()) -> None:
    """Disable and enable plug-ins and packages, by name, for this process.

    A plug-in that is not named is enabled. An object of a package that is not named is used only
    if something asks for it by name; see `load_from_enabled_packages`. A process that opens several
    projects uses the configuration of the last one.
    """
    _ENABLED.disabled = frozenset(map(normalize_name, disabled))
    _ENABLED.enabled = frozenset(map(normalize_name, enabled))


def normalize_name(package: str) -> str:
    """Return the name of *package* as package indexes compare it (PEP 503).

    >>> normalize_name("Acme__Sequencer.-Tools")
    'acme-sequencer-tools'
    """
    parts = package.lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(filter(None, parts))


def _is_disabled(point: EntryPoint) -> bool:
    return point.dist is not None and normalize_name(point.dist.name) in _ENABLED.disabled


def is_available(plugin: str) -> bool:
    """Return whether *plugin*, a plug-in of this package, is installed and not disabled."""
    return plugin not in _ENABLED.disabled and (_PLUGINS_DIR / plugin).is_dir()


def find_plugin(group: str, name: str) -> str | None:
    """Return the plug-in of this package that provides *name* in *group*, if one does."""
    target = OURS.get(group, {}).get(name)
    return None if target is None else target.partition(".")[0]


def plugin_at(target: str) -> str | None:
    """Return the plug-in of this package that contains ``MODULE:NAME``; None: no plug-in does.

    >>> plugin_at("sequencer.plugins.web.contributions:PAGE"), plugin_at("mine.pages:PAGE")
    ('web', None)
    """
    return target.split(".")[2] if target.startswith(f"{_PLUGINS}.") else None


def installed_packages() -> frozenset[str]:
    """Return the `normalize_name` names of the installed packages that have entry points for us."""
    return frozenset(
        normalize_name(packages.get_distribution_name(point))
        for point in packages.sequencer_entry_points()
    )


def find(group: str, name: str, *, even_disabled: bool = False) -> Any | None:
    """Return the object called *name* in *group*; None: there is none, or it is disabled.

    With *even_disabled*, disabled plug-ins of this package are searched too.

    Raises:
        ConfigurationError: it can't be loaded.
    """
    if (target := OURS.get(group, {}).get(name)) is not None:
        return _load_target(target) if even_disabled or _is_enabled(target) else None
    point = next(_find_entries(group, name), None)
    return None if point is None else load(point)


def _find_entries(group: str, name: str) -> Iterator[EntryPoint]:
    return (entry for entry in entries(group) if entry.name == name)


def require(group: str, name: str, what: str, *, known: Iterable[str] = (), where: str = "") -> Any:
    """Return the object called *name* in *group*.

    Raises:
        UnknownName: there is none; *what* says what it is, and *known* lists more names.
        PluginUnavailable: its plug-in is disabled or not installed.
        ConfigurationError: it can't be loaded.
    """
    if (extension := find(group, name)) is None:
        raise unavailable_error(group, name, what, known=known, where=where)
    return extension


def unavailable_error(
    group: str, name: str, what: str, *, known: Iterable[str] = (), where: str | None = None
) -> ConfigurationError:
    """Return the error that says why *group* has no object called *name*; see `require`."""
    if (provider := find_plugin(group, name) or _disabled_package(group, name)) is not None:
        return PluginUnavailable(f"{what} {name!r}", provider, where=where or None)
    return UnknownName(what, name, {*known, *names(group)}, where=where or None)


def _disabled_package(group: str, name: str) -> str | None:
    """Return the disabled package that provides *name* in *group*, if one does."""
    if not _ENABLED.disabled - PLUGINS:
        return None
    points = (
        point
        for point in packages.sequencer_entry_points()
        if (point.group, point.name) == (group, name)
    )
    return next(
        (packages.get_distribution_name(point) for point in points if _is_disabled(point)), None
    )


def missing_provider(group: str, name: str) -> str | None:
    """Return the plug-in or the disabled package that provides *name* in *group*.

    None: it is available, or nothing that is installed provides it.
    """
    if (plugin := find_plugin(group, name)) is not None:
        return None if is_available(plugin) else plugin
    return _disabled_package(group, name)


def has_provider(group: str, name: str) -> bool:
    """Return whether a plug-in or an installed package has *name* in *group*, even a disabled one.

    Use it for settings that are only read; to use the object, call `require`.
    """
    return (
        name in OURS.get(group, {})
        or any(_find_entries(group, name))
        or _disabled_package(group, name) is not None
    )


class Single(Generic[_T]):
    """A group whose only object belongs to a plug-in of this package."""

    def __init__(self, group: str, what: str) -> None:
        """Look in *group*; messages say that *what* needs the object."""
        self._group, self._what = group, what

    def get(self, *, even_disabled: bool = False) -> _T | None:
        """Return the object; None: its plug-in is disabled or not installed."""
        return next(
            (extension for _, extension in load_builtins(self._group, even_disabled=even_disabled)),
            None,
        )

    def require(self) -> _T:
        """Return the object.

        Raises:
            PluginUnavailable: its plug-in is disabled or not installed.
        """
        if (extension := self.get()) is None:
            raise PluginUnavailable(
                self._what, next(iter(OURS[self._group].values())).partition(".")[0]
            )
        return extension


def load_builtins(group: str, *, even_disabled: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) for each object of *group* in this package."""
    for name, target in OURS.get(group, {}).items():
        is_asked_for = even_disabled or _is_enabled(target)
        if is_asked_for and (extension := _load_target(target)) is not None:
            yield name, extension


def load_from_packages(
    group: str, failed: Callable[[ConfigurationError], object] = lambda _: None
) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield (entry point, object) for each object of *group* in other packages, by name.

    *failed* is called with the error of each object that can't be loaded.
    """
    for point in sorted(entries(group), key=lambda entry: entry.name):
        if point.name not in OURS.get(group, {}):
            yield from _load_each((point,), failed)


def _load_each(
    points: Iterable[EntryPoint], on_error: Callable[[ConfigurationError], object]
) -> Iterator[tuple[EntryPoint, Any]]:
    for point in points:
        try:
            extension = load(point)
        except ConfigurationError as error:
            on_error(error)
        else:
            yield point, extension


def has_enabled_packages() -> bool:
    """Return whether ``plugins:`` enables a package by name."""
    return bool(_ENABLED.enabled - PLUGINS)


def load_from_enabled_packages(
    group: str, failed: Callable[[ConfigurationError], object]
) -> Iterator[tuple[EntryPoint, Any]]:
    """Yield (entry point, object) for each object of *group* in packages that are enabled by name.

    *failed* is called with the error of each object that can't be loaded. A package that is not
    installed is skipped; opening the project reports it.
    """
    points = (point for point in entries(group) if is_enabled_by_name(point))
    yield from _load_each(sorted(points, key=packages.get_distribution_name), failed)


@contextmanager
def package_code(
    group: str,
    name: str,
    point: EntryPoint | None = None,
    *,
    expected: tuple[type[Exception], ...] = (),
) -> Iterator[None]:
    """Report an exception in the block as an error of the package that provides *name* in *group*.

    *point* is its entry point, if the caller has it. Errors of our own objects pass unchanged, and
    so do the *expected* types, which objects of this group raise on purpose.

    Raises:
        PackageFailed: the block raised an exception that is neither a deliberate error nor caused
            by this machine.
    """
    try:
        yield
    except expected:
        raise
    except BaseException as error:
        if (fault := find_package_fault(error, group, name, point)) is None:
            raise
        raise fault from error


_AT_WORK = (STORES, EXECUTORS, SINKS)
"""Groups whose objects use files and processes on this machine."""


def find_package_fault(
    error: BaseException, group: str, name: str, point: EntryPoint | None = None
) -> PackageFailed | None:
    """Return *error* as `PackageFailed` if the package that provides *name* in *group* raised it.

    None: it is a deliberate error, one of our own objects raised it, or this machine caused it.
    The last reason applies only to stores, agents and sinks, which use files and processes.
    """
    if isinstance(error, (SequencerError, KeyboardInterrupt)):
        return None
    if group in _AT_WORK and (to_machine_busy(error) or to_storage_failed(error)):
        return None
    # An object that is not named after its entry point is recognized by its code.
    reason = f"failed: {packages.describe_bug(error)}"
    provider = point or next(_find_entries(group, name), None)
    return _package_error(provider, reason) or packages.to_package_error(error)


def _package_error(point: EntryPoint | None, reason: str) -> PackageFailed | None:
    if point is None:
        return None
    return packages.package_error(
        packages.get_distribution_name(point), reason, packages.format_entry_point(point)
    )


def create(group: str, name: str, kind: Any, make: Callable[..., Any], *args: Any) -> Any:
    """Return the result of *make*, which a package provides as *name* in *group*.

    Raises:
        ConfigurationError: *make* raised an error, or its result is not a *kind*.
    """
    with package_code(group, name):
        result = make(*args)
    if not isinstance(result, kind):
        raise wrong_type_error(kind, result, group, name)
    return result


def wrong_type_error(kind: Any, result: object, group: str, name: str) -> Exception:
    """Return the error for *result*, a result of *name* in *group* that is not a *kind*."""
    expected_type = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    reason = f"returned {packages.describe(result)}, which is not a {expected_type}"
    public_names = sorted(
        key for key in {*dir(kind), *getattr(kind, "__annotations__", ())} if key[0] != "_"
    )
    missing_names = [key for key in public_names if not hasattr(result, key)]
    if missing_names and getattr(kind, "_is_protocol", False):
        reason += f": it has no {', '.join(missing_names)}"
    return make_package_error(group, name, reason)


def make_package_error(group: str, name: str, reason: str) -> Exception:
    """Return the error that says what is wrong with *name* in *group*, which a package provides."""
    return _package_error(next(_find_entries(group, name), None), reason) or TypeError(reason)


def names(group: str) -> set[str]:
    """Return the enabled names in *group*, of this package and of others."""
    enabled_names = (name for name, target in OURS.get(group, {}).items() if _is_enabled(target))
    return {*enabled_names, *(entry.name for entry in entries(group))}


def _is_enabled(target: str) -> bool:
    return target.partition(".")[0] not in _ENABLED.disabled


def load(point: EntryPoint) -> Any:
    """Return the object of *point*, which has the type that its group requires.

    Raises:
        ConfigurationError: it can't be imported, or has another type.
    """
    fault = partial(
        packages.package_error,
        packages.get_distribution_name(point),
        where=packages.format_entry_point(point),
    )
    if _VALUE.fullmatch(point.value) is None:
        raise fault("has a malformed entry point here: write MODULE:NAME")
    try:
        extension = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # --verbose shows the traceback of the cause.
        raise fault(f"failed while it was imported: {packages.describe_bug(error)}") from error
    required_class = OFFERED.get(point.group)
    is_right = (
        callable(extension)
        if required_class is None
        else isinstance(extension, resolve_part(required_class))
    )
    if not is_right:
        kind = "function" if required_class is None else required_class.replace(":", ".")
        raise fault(f"provides {packages.describe(extension)}, which is not a {kind}")
    return extension


def entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages in *group* without loading them."""
    if not packages.may_add(group):
        return ()
    points = (point for point in packages.sequencer_entry_points() if point.group == group)
    return tuple(point for point in points if not _is_disabled(point))


def all_entries() -> list[EntryPoint]:
    """Return the entry points of all installed packages for Sequencer without loading them."""
    if not packages.may_add("[sequencer."):
        return []
    points = (point for point in packages.sequencer_entry_points() if not _is_disabled(point))
    return sorted(points, key=lambda point: (point.group, point.name))


def is_enabled_by_name(point: EntryPoint) -> bool:
    """Return whether ``plugins:`` enables the package of *point*."""
    return normalize_name(packages.get_distribution_name(point)) in _ENABLED.enabled


def missing_plugin(error: ModuleNotFoundError) -> str | None:
    """Return the missing plug-in of this package that caused *error*; None: another module did.

    >>> missing_plugin(ModuleNotFoundError("…", name="sequencer.plugins.web.section"))
    'web'
    """
    name = error.name or ""
    if name == _PLUGINS:
        return "plugins"
    return plugin_at(name)


def resolve_part(part: str | Callable[..., Any]) -> Any:
    """Return *part*; if it is the text ``MODULE:NAME`` or ``MODULE``, import and return that."""
    if not isinstance(part, str):
        return part
    if ":" not in part:
        return import_module(part)
    from pkgutil import resolve_name  # noqa: PLC0415 - the idle tick does not need it

    return resolve_name(part)


def _load_target(target: str) -> Any | None:
    """Return the object at *target*; None: its plug-in, or one that it imports, is missing."""
    try:
        return resolve_part(f"{_PLUGINS}.{target}")
    except ModuleNotFoundError as error:
        if (plugin_error := missing_plugin(error)) is None:
            raise
        _MISSING_DEPENDENCY[target.partition(".")[0]] = plugin_error
        return None
