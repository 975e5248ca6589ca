"""The registry of extensions: named objects in groups, one group for each kind of extension.

`OURS` lists the objects of this package as text, so listing them imports nothing. Other packages
provide entry points in the same groups. Their metadata is read only for a name that is not in
`OURS`, because that takes fifty times as long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sequencer.errors import ConfigurationError, SequencerError, UnknownName

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = "sequencer.kinds"
"""Kinds of workflows: functions that return a `Line` for a workflow."""
EXECUTORS = "sequencer.executors"
"""Kinds of agents: functions that return an executor."""
STORES = "sequencer.stores"
"""Kinds of stores: `project.store_kinds.StoreKind`."""
HOOKS = "sequencer.hooks"
"""Code that runs before and after each step; see `hooks`."""
COMMANDS = "sequencer.commands"
"""Commands: `click.Command`, whose object is an `Invocation`."""
CONTRIBUTIONS = "sequencer.contributions"
"""Additions to a command: `cli.contributions.Contribution`, named COMMAND.NAME."""
RENDERERS = "sequencer.renderers"
"""Drawings of workflows: `cli.contributions.Renderer`."""
CHECKS = "sequencer.checks"
"""Checks: functions that take the `Project` and the name of a run and yield each `Finding`. With
``looks=True`` they must not run anything of the project or contact a server."""
SECTIONS = "sequencer.sections"
"""Sections of orchestration.yaml: `project.sections.ConfigSection`."""
SINKS = "sequencer.sinks"
"""Kinds of activity sinks: functions from a name, `SinkOptions` and a `SinkPlace` to a
`plugins.posting.protocol.Sink`."""
STATUS_LINES = "sequencer.status_lines"
"""Lines of `status`: functions from a `Project` and a `Run` to (label, text) pairs. Used only from
packages that are enabled by name."""
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
STARTS = "sequencer.starts"
"""Schedulers, by the section that configures them: `project.starts.Starts`."""
SYSTEM_PROMPTS = "sequencer.system_prompts"
"""System prompts for steps with `system_from_labels`: functions from `Settings` to their names."""
COMMENT_TOOLS = "sequencer.comment_tools"
"""Tools that post comments, which steps with ``no_comment`` do not get: functions from `Settings`
to their names."""
CODE = "sequencer.code"
"""Code synchronization: functions from a `project.store_requests.CodeRequest` to a `Carrier`, or
None."""

_CLASSES: Mapping[str, str] = {
    STORES: "StoreKind",
    COMMANDS: "Command",
    CONTRIBUTIONS: "Contribution",
    RENDERERS: "Renderer",
    SECTIONS: "ConfigSection",
    PAGES: "AddedPage",
}
"""The class of the objects in a group, by name: loading it would take long. In other groups they
are functions."""
OPEN = (KINDS, EXECUTORS, HOOKS, CHECKS, SINKS, STATUS_LINES, *_CLASSES)
"""The groups in which entry points of other packages count."""
_T = TypeVar("_T")
_PLUGINS = "sequencer.plugins"
_ROOM = Path(__file__).with_name("plugins")
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
    SYSTEM_PROMPTS: {"routing": "requests.section:system_prompts_of"},
    COMMENT_TOOLS: {"activity": "posting.section:comment_tools_of"},
    POSTING: {"activity": "posting.posting:posting_of"},
    STARTS: {"schedules": "schedules.schedules"},
    CHECKS: {
        "git": "git.check:check_project",
        "schedules": "schedules.check:check_project",
        "requests": "requests.project_requests:check_project",
        "web": "web.webhook_checks:check_project",
    },
    REPOSITORIES: {"git": "git.process:INSPECTOR"},
    CODE: {"store": "git.code.carry:of_store", "attempts": "git.code.attempt_refs:of_attempts"},
}
"""The objects of this package: group -> name -> ``MODULE:NAME`` below `sequencer.plugins`."""
PLUGINS = frozenset(
    place.partition(".")[0] for places in OURS.values() for place in places.values()
)
"""The plug-ins of this package; each is a folder below `sequencer.plugins`."""


class _Enabled:
    """Which plug-ins and packages this process may use."""

    disabled: frozenset[str] = frozenset()
    enabled: frozenset[str] = frozenset()


_ENABLED = _Enabled()


class PluginUnavailable(ConfigurationError):
    """Something needs a plug-in or a package that is disabled or not installed."""

    def __init__(self, what: str, plugin: str, *, where: str | None = None) -> None:
        """Refuse *what*, which needs *plugin*: a plug-in of this package, or a package."""
        is_ours, is_disabled = plugin in PLUGINS, canonical(plugin) in _ENABLED.disabled
        super().__init__(
            f"{what} needs the {'plug-in' if is_ours else 'package'} {plugin!r}, which is "
            + ("disabled" if is_disabled else "not installed"),
            where=where,
            hint=_how_to_enable(plugin) if is_disabled else _how_to_install(plugin),
        )


def _how_to_enable(plugin: str) -> str:
    variable = f"SEQUENCER_PLUGINS__{plugin.upper().replace('-', '_')}"
    if variable in os.environ:
        # It wins over the file.
        return f"unset the variable {variable}, or set it to 'on'"
    return f"set 'plugins: {{{plugin}: on}}' in orchestration.yaml (or {variable}=on)"


def _how_to_install(plugin: str) -> str:
    if plugin in PLUGINS:
        return "reinstall step-sequencer"
    return f"install it, or remove it from 'plugins:': pip install {plugin}"


def configure(disabled: Iterable[str], enabled: Iterable[str] = ()) -> None:
    """Disable and enable plug-ins and packages, by name, for this process.

    A plug-in that is not named is enabled. Of packages that are not named, everything is used that
    is asked for by name; see `from_enabled_packages` for the rest. A process that opens several
    projects uses the configuration of the last one.
    """
    _ENABLED.disabled = frozenset(map(canonical, disabled))
    _ENABLED.enabled = frozenset(map(canonical, enabled))


def canonical(package: str) -> str:
    """Return the name of *package* as indexes compare it (PEP 503).

    >>> canonical("Acme_Sequencer.Tools")
    'acme-sequencer-tools'
    """
    return package.lower().replace("_", "-").replace(".", "-")


def _is_disabled(point: EntryPoint) -> bool:
    return point.dist is not None and canonical(point.dist.name) in _ENABLED.disabled


def is_available(plugin: str) -> bool:
    """Return whether *plugin*, one of this package, is installed and not disabled."""
    return plugin not in _ENABLED.disabled and (_ROOM / plugin).is_dir()


def plugin_of(group: str, name: str) -> str | None:
    """Return the plug-in of this package that provides *name* in *group*; None: none does."""
    place = OURS.get(group, {}).get(name)
    return None if place is None else place.partition(".")[0]


def plugin_at(place: str) -> str | None:
    """Return the plug-in of this package that contains ``MODULE:NAME``; None: it is not ours.

    >>> plugin_at("sequencer.plugins.web.contributions:PAGE"), plugin_at("mine.pages:PAGE")
    ('web', None)
    """
    return place.split(".")[2] if place.startswith(f"{_PLUGINS}.") else None


def packages() -> frozenset[str]:
    """Return the `canonical` names of the installed packages that have entry points for us."""
    from importlib.metadata import distributions  # noqa: PLC0415 - slow to import

    return frozenset(
        canonical(one.name)
        for one in distributions()
        if any(entry.group.startswith("sequencer.") for entry in one.entry_points)
    )


def find(group: str, name: str, *, even_disabled: bool = False) -> Any | None:
    """Return the object called *name* in *group*; None: there is none, or it is disabled.

    With *even_disabled*, a disabled plug-in of this package counts too.

    Raises:
        ConfigurationError: it can't be loaded.
    """
    if (place := OURS.get(group, {}).get(name)) is not None:
        return _loaded(place) if even_disabled or _is_enabled(place) else None
    found = next((entry for entry in entries(group) if entry.name == name), None)
    return None if found is None else load(found)


def needed(group: str, name: str, what: str, *, known: Iterable[str] = (), where: str = "") -> Any:
    """Return the object called *name* in *group*.

    Raises:
        UnknownName: there is none; *what* says what it is, and *known* lists more names.
        PluginUnavailable: its plug-in is disabled or not installed.
        ConfigurationError: it can't be loaded.
    """
    if (found := find(group, name)) is None:
        raise unavailable(group, name, what, known=known, where=where)
    return found


def unavailable(
    group: str, name: str, what: str, *, known: Iterable[str] = (), where: str | None = None
) -> ConfigurationError:
    """Return why *group* has no object called *name*; see `needed`."""
    if (provider := plugin_of(group, name) or _disabled_package(group, name)) is not None:
        return PluginUnavailable(f"{what} {name!r}", provider, where=where or None)
    return UnknownName(what, name, {*known, *names(group)}, where=where or None)


def _disabled_package(group: str, name: str) -> str | None:
    """Return the disabled package that provides *name* in *group*, if one does."""
    if not _ENABLED.disabled - PLUGINS:
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes long to load

    points = entry_points(group=group, name=name)
    return next((one.dist.name for one in points if one.dist and _is_disabled(one)), None)


def provides(group: str, name: str) -> bool:
    """Return whether a plug-in or an installed package has *name* in *group*, even a disabled one.

    It is for settings that are only read: whoever uses the object calls `needed`.
    """
    return (
        name in OURS.get(group, {})
        or any(one.name == name for one in entries(group))
        or _disabled_package(group, name) is not None
    )


class Single(Generic[_T]):
    """A group with one object, of a plug-in of this package."""

    def __init__(self, group: str, what: str) -> None:
        """Look in *group*; *what* needs the object, for messages."""
        self._group, self._what = group, what

    def get(self, *, even_disabled: bool = False) -> _T | None:
        """Return the object; None: its plug-in is disabled or not installed."""
        return next((one for _, one in ours(self._group, even_disabled=even_disabled)), None)

    def required(self) -> _T:
        """Return the object.

        Raises:
            PluginUnavailable: its plug-in is disabled or not installed.
        """
        if (found := self.get()) is None:
            raise PluginUnavailable(
                self._what, next(iter(OURS[self._group].values())).partition(".")[0]
            )
        return found


def ours(group: str, *, even_disabled: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) for each object of *group* in this package."""
    for name, place in OURS.get(group, {}).items():
        is_asked_for = even_disabled or _is_enabled(place)
        if is_asked_for and (found := _loaded(place)) is not None:
            yield name, found


def from_packages(
    group: str, failed: Callable[[ConfigurationError], object] = lambda _: None
) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) for each object of *group* in other packages, by name.

    *failed* gets the error of each that can't be loaded.
    """
    for entry in sorted(entries(group), key=lambda entry: entry.name):
        if entry.name in OURS.get(group, {}):
            continue
        try:
            found = load(entry)
        except ConfigurationError as error:
            failed(error)
        else:
            yield entry.name, found


def from_enabled_packages(group: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) for each object of *group* in packages that are enabled by name.

    Raises:
        PluginUnavailable: one is not installed.
        ConfigurationError: one can't be loaded.
    """
    for package in sorted(_ENABLED.enabled - PLUGINS):
        from importlib.metadata import (  # noqa: PLC0415 - slow to import
            PackageNotFoundError,
            distribution,
        )

        try:
            points = distribution(package).entry_points
        except PackageNotFoundError:
            raise PluginUnavailable(f"plugins.{package}", package) from None
        yield from ((point.name, load(point)) for point in points if point.group == group)


@contextmanager
def package_code(group: str, name: str) -> Iterator[None]:
    """Report whatever the package that provides *name* in *group* raises in the block.

    Raises:
        ConfigurationError: the block raised something that is not a deliberate error.
    """
    try:
        yield
    except (SequencerError, OSError):
        raise
    except (Exception, SystemExit) as error:
        point = next((one for one in entries(group) if one.name == name), None)
        package = None if point is None or point.dist is None else point.dist.name
        raise package_fault(package, error, where=f"{group}: {name}") from error


def package_fault(
    package: str | None, error: BaseException, where: str | None = None
) -> ConfigurationError:
    """Return the error that reports *error*, a bug of *package*; None: nobody knows whose."""
    name = "PACKAGE" if package is None else package
    return ConfigurationError(
        f"{'a package' if package is None else f'the package {package!r}'} failed: "
        f"{type(error).__name__}: {error}",
        where=where,
        hint=f"report it to its authors, or disable it: plugins: {{{name}: off}}",
    )


def ensure_made(made: Any, wanted: str, *methods: str) -> Any:
    """Return *made*, the result of a package's function.

    Raises:
        TypeError: it is not a *wanted*, which has these *methods*.
    """
    if not all(callable(getattr(made, name, None)) for name in methods):
        raise TypeError(f"{made!r:.100} is not a {wanted}")
    return made


def package_that_raised(error: BaseException) -> str | None:
    """Return the package with entry points for Sequencer whose code raised *error*, if one did."""
    modules, frame = set[str](), error.__traceback__
    while frame is not None:
        modules.add(str(frame.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.tb_next
    from importlib.metadata import distributions  # noqa: PLC0415 - slow to import

    for package in distributions():
        for entry in package.entry_points:
            is_extension = entry.group.startswith("sequencer.")
            if is_extension and entry.module.partition(".")[0] in modules:
                return package.name
    return None


def names(group: str) -> set[str]:
    """Return the names in *group*, of this package and of others, without disabled ones."""
    enabled = (name for name, place in OURS.get(group, {}).items() if _is_enabled(place))
    return {*enabled, *(entry.name for entry in entries(group))}


def _is_enabled(place: str) -> bool:
    return place.partition(".")[0] not in _ENABLED.disabled


def load(point: EntryPoint) -> Any:
    """Return the object of *point*, an entry point of a package.

    Raises:
        ConfigurationError: it can't be loaded, or is not what its group is for.
    """
    where = f"{point.group}: {point.name} = {point.value}"
    try:
        found = point.load()
    except (Exception, SystemExit) as error:
        # With --verbose its traceback is shown.
        raise ConfigurationError(
            f"{_of(point)} can't be loaded: {type(error).__name__}: {error}",
            where=where,
            hint=_how_to_mend(point),
        ) from error
    wanted = _CLASSES.get(point.group)
    if wanted is None:
        fits, wanted = callable(found) or point.group == HOOKS, "function"
    else:
        fits = any(one.__name__ == wanted for one in type(found).__mro__)
    if not fits:
        message = f"{_of(point)} is {found!r:.100}, but it has to be a {wanted}"
        raise ConfigurationError(message, where=where, hint=_how_to_mend(point))
    return found


def _of(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of the package {point.dist.name!r}"
    return f"{point.name!r}{package}"


def _how_to_mend(point: EntryPoint) -> str:
    package = "PACKAGE" if point.dist is None else point.dist.name
    return f"report it to the package's authors, or disable it: plugins: {{{package}: off}}"


def entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages in *group*; none of them is loaded."""
    if not _packages_may_add(group):
        return ()
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes long to load

    found = tuple(entry_points(group=group))
    return tuple(one for one in found if not _is_disabled(one))


def points_of_packages() -> list[EntryPoint]:
    """Return all entry points that packages have for Sequencer, without those of disabled ones."""
    from importlib.metadata import distributions  # noqa: PLC0415 - slow to import

    points = {(e.group, e.name, e.value): e for one in distributions() for e in one.entry_points}
    ours = (points[key] for key in sorted(points) if key[0].startswith("sequencer."))
    return [one for one in ours if not _is_disabled(one)]


def _packages_may_add(group: str) -> bool:
    """Return whether an installed package may have entry points in *group*.

    This reads the files that importlib.metadata would read, without loading that module, which
    takes ten times longer. If a path is not a folder of packages, the answer is yes.
    """
    from importlib.machinery import PathFinder  # noqa: PLC0415 - the idle tick has no use for it

    finders = (one for one in sys.meta_path if one is not PathFinder)
    if any(hasattr(one, "find_distributions") for one in finders):
        return True
    for folder in sys.path:
        try:
            found = os.listdir(folder or ".")  # noqa: PTH208 - no Path for each name
        except FileNotFoundError:
            continue
        except OSError:
            return True
        for name in found:
            if name.endswith((".dist-info", ".egg-info", "EGG-INFO")):
                with suppress(OSError):
                    if group.encode() in Path(folder, name, "entry_points.txt").read_bytes():
                        return True
    return False


def missing_plugin(error: ModuleNotFoundError) -> str | None:
    """Return the plug-in of this package that *error* did not find; None: it is another module.

    >>> missing_plugin(ModuleNotFoundError("…", name="sequencer.plugins.web.section"))
    'web'
    """
    name = error.name or ""
    if name == _PLUGINS:
        return "plugins"
    return plugin_at(name)


def loaded(part: str | Callable[..., Any]) -> Any:
    """Return *part*; text is imported: ``MODULE:NAME`` or ``MODULE``."""
    if not isinstance(part, str):
        return part
    if ":" not in part:
        return import_module(part)
    from pkgutil import resolve_name  # noqa: PLC0415 - the idle tick does not need it

    return resolve_name(part)


def _loaded(place: str) -> Any | None:
    """Return the object at *place*; None: its plug-in is not installed, or one that it imports."""
    try:
        return loaded(f"{_PLUGINS}.{place}")
    except ModuleNotFoundError as error:
        if missing_plugin(error) is None:
            raise
        return None
