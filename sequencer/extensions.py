"""What the core can be extended with: objects under a name, in a group for each kind of thing.

`OURS` lists those of this package as text, so that listing them imports nothing. Those of
other packages are entry points of the same groups; their metadata is read only for a name that
is not ours, because that takes fifty times as long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequencer.errors import ConfigurationError, SequencerError, UnknownName

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = "sequencer.kinds"
"""Kinds of workflows; each makes a `Line` of one."""
TREES = "sequencer.trees"
"""What sees the changes in a folder; each is an `engine.tree_state.MakeTree`."""
EXECUTORS = "sequencer.executors"
"""Kinds of agents; each makes an executor."""
STORES = "sequencer.stores"
"""Kinds of stores; each is a `project.store_kinds.StoreKind`."""
HOOKS = "sequencer.hooks"
"""A project's or a package's own code around each step."""
REPOSITORIES = "sequencer.repositories"
"""What a repository around a project does by itself, which is shown before it is trusted; each is
a `project.store_requests.RepositoryInspector`. Only ours count."""
WORKTREES = "sequencer.worktrees"
"""What makes folders of their own for agents; each is a `project.worktrees.WorktreeProvider`.
Only ours count."""
WORKFLOW_KEYS = "sequencer.workflow_keys"
"""Keys of an entry of ``workflows:`` that stand for its steps; each is the
`workflows.finding.FileFormat` whose `InlineFormat` has them. Only ours count."""
FORMATS = "sequencer.formats"
"""Formats of workflow files; each is a `workflows.finding.FileFormat`. Only ours count."""
TASKS = "sequencer.tasks"
"""What graphs of tasks are worked on with; each is a `project.task_graphs.TaskGraphs`. Only ours
count."""
SECTIONS = "sequencer.sections"
"""Sections of orchestration.yaml; each is a `project.sections.ConfigSection`."""
POSTING = "sequencer.posting"
"""What posts results of runs, by the section that says where; each makes a
`project.posting.Posting` of a `Project`, or None. Only ours count."""
STARTS = "sequencer.starts"
"""What starts runs by itself, by the section that says when; each is a `project.starts.Starts`.
Only ours counts."""
CHECKS = "sequencer.checks"
"""What `check` finds; each is called with the `Project` and the name of a run, and yields
`Finding`s. With ``looks=True`` nothing may be run or asked for it."""
COMMANDS = "sequencer.commands"
"""Commands; each is a `click.Command`, whose object is an `Invocation`."""
STATUS_LINES = "sequencer.status_lines"
"""Lines of `status`; each is called with the `Project` and a `Run`, and yields pairs of a label and
a text. Those of packages that are switched on."""
SINKS = "sequencer.sinks"
"""Kinds of sinks of ``activity.sinks``; each makes a `plugins.posting.protocol.Sink` of its name,
its `SinkOptions` and a `SinkPlace`."""
PAGES = "sequencer.pages"
"""Pages below /more; each is a `plugins.web.pages.AddedPage`. The menu has those of packages that
are switched on."""
SYSTEM_PROMPTS = "sequencer.system_prompts"
"""System prompts that steps with `system_from_labels` may get; each returns their names for
`Settings`. Only ours count."""
COMMENT_TOOLS = "sequencer.comment_tools"
"""Tools with which an agent could post by itself, so that a step with ``no_comment`` has none of
them; each returns their names for `Settings`. Only ours count."""
CODE = "sequencer.code"
"""Ways to move the code of a run's steps; each makes a `Carrier` of a
`project.store_requests.CodeRequest`, or None."""

CONTRIBUTIONS = "sequencer.contributions"
"""What a command can show or do besides; each is a `cli.contributions.Contribution`, under the
name COMMAND.NAME."""
RENDERERS = "sequencer.renderers"
"""What draws workflows; each is a `cli.contributions.Renderer`."""

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
"""What comes with this package, by group and name; the place is below `sequencer.plugins`."""
PLUGINS = frozenset(
    place.partition(".")[0] for places in OURS.values() for place in places.values()
)
"""Those of this package; each is a folder below `sequencer.plugins`."""


class _Switches:
    """Of this process."""

    off: frozenset[str] = frozenset()
    on: frozenset[str] = frozenset()


_SWITCHES = _Switches()


class SwitchedOff(ConfigurationError):
    """Something belongs to a plug-in that is switched off, or not installed."""

    def __init__(self, what: str, plugin: str, *, where: str | None = None) -> None:
        """Refuse *what* of *plugin*."""
        if plugin in _SWITCHES.off:
            state, hint = (
                "switched off",
                f"take '{plugin}: off' out of plugins in orchestration.yaml",
            )
        else:
            state, hint = "not installed", "install the whole package again"
        message = f"{what} needs the plug-in {plugin!r}, which is {state}"
        super().__init__(message, where=where, hint=hint)


def switch(off: Iterable[str], on: Iterable[str] = ()) -> None:
    """Let this process go on as if the plug-ins *off* were not installed, and all others were.

    A package is meant by its name. The packages that are *on* are asked for what nobody asks for
    by name, see `chosen`. Whoever opens several projects in one process has what the one says
    that was opened last.
    """
    _SWITCHES.off, _SWITCHES.on = frozenset(off), frozenset(on)


def chosen(group: str) -> Iterator[tuple[str, Any]]:
    """Yield names and objects of *group* of the packages that are switched on, in order.

    Raises:
        ConfigurationError: one is not installed, or can't be loaded.
    """
    for package in sorted(_SWITCHES.on - PLUGINS):
        from importlib.metadata import (  # noqa: PLC0415 - it takes long to load
            PackageNotFoundError,
            distribution,
        )

        try:
            points = distribution(package).entry_points
        except PackageNotFoundError:
            raise SwitchedOff(f"plugins.{package}", package) from None
        for point in points:
            if point.group == group:
                yield point.name, _load(point)


def is_on(plugin: str) -> bool:
    """Return whether *plugin*, one of this package, is installed and not switched off."""
    return plugin not in _SWITCHES.off and (_ROOM / plugin).is_dir()


def plugin_of(group: str, name: str) -> str | None:
    """Return the plug-in of this package that has *name* in *group*; None: none has."""
    place = OURS.get(group, {}).get(name)
    return None if place is None else place.partition(".")[0]


def plugin_at(place: str) -> str | None:
    """Return the plug-in of this package that has ``MODULE:NAME``; None: it is another's.

    >>> plugin_at("sequencer.plugins.web.contributions:PAGE"), plugin_at("mine.pages:PAGE")
    ('web', None)
    """
    return place.split(".")[2] if place.startswith(f"{_PLUGINS}.") else None


def packages() -> frozenset[str]:
    """Return the names of installed packages that add something."""
    from importlib.metadata import distributions  # noqa: PLC0415 - it takes long to load

    return frozenset(
        one.name
        for one in distributions()
        if any(entry.group.startswith("sequencer.") for entry in one.entry_points)
    )


def _is_there(place: str) -> bool:
    return place.partition(".")[0] not in _SWITCHES.off


def find(group: str, name: str) -> Any | None:
    """Return the object called *name* in *group*, or None if there is none.

    Raises:
        ConfigurationError: it can't be loaded.
    """
    if (place := OURS.get(group, {}).get(name)) is not None:
        return _loaded(place) if _is_there(place) else None
    found = next((entry for entry in entries(group) if entry.name == name), None)
    if found is None:
        return None
    return _load(found)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        # Whatever somebody else's code raises; with --verbose its traceback is shown.
        kind = type(error).__name__
        raise ConfigurationError(
            f"the package that brings {point.name!r} can't be loaded: {kind}: {error}",
            where=f"{point.group}: {point.value}",
            hint="install it again, or remove it",
        ) from error


def installed(group: str) -> Iterator[tuple[str, Any]]:
    """Yield names and objects of *group*, ours first, also what is switched off of ours.

    Raises:
        ConfigurationError: one can't be loaded.
    """
    for name, place in OURS.get(group, {}).items():
        if (found := _loaded(place)) is not None:
            yield name, found
    for name in sorted(names(group) - OURS.get(group, {}).keys()):
        yield name, find(group, name)


def own(group: str, name: str) -> Any | None:
    """Return what comes with this package as *name* in *group*, also where it is switched off."""
    place = OURS.get(group, {}).get(name)
    return None if place is None else _loaded(place)


def needed(group: str, name: str, what: str, *, known: Iterable[str] = (), where: str = "") -> Any:
    """Return the object called *name* in *group*.

    Raises:
        UnknownName: there is none; *what* says what it is, and *known* has names besides.
        SwitchedOff: its plug-in is switched off, or not there.
        ConfigurationError: it can't be loaded.
    """
    if (found := find(group, name)) is None:
        if (plugin := plugin_of(group, name)) is not None:
            raise SwitchedOff(f"{what} {name!r}", plugin, where=where or None)
        raise UnknownName(what, name, {*known, *names(group)}, where=where or None)
    return found


def required(group: str, what: str) -> Any:
    """Return the only object of *group*, which *what* needs.

    Raises:
        SwitchedOff: its plug-in is switched off, or not there.
    """
    if (found := next(ours(group), None)) is None:
        raise SwitchedOff(what, next(iter(OURS[group].values())).partition(".")[0])
    return found


def added(group: str) -> set[str]:
    """Return the names in *group* that packages add."""
    return {entry.name for entry in entries(group)} - OURS.get(group, {}).keys()


@contextmanager
def called(group: str, name: str, found: Any = None) -> Iterator[Any]:
    """Return a block in which *name* of *group*, a package's, is called; *found* if it is known.

    Raises:
        ConfigurationError: it can't be loaded; or whatever it raises, in one line.
    """
    found = find(group, name) if found is None else found
    try:
        yield found
    except (SequencerError, OSError):
        raise
    except Exception as error:
        # Whatever somebody else's code raises; with --verbose its traceback is shown.
        raise ConfigurationError(
            f"what a package brings as {name!r} failed: {type(error).__name__}: {error}",
            where=group,
            hint="it is a fault of that package; switch it off with plugins: {PACKAGE: off}",
        ) from error


def every(group: str) -> Iterator[Any]:
    """Yield each object of *group*, ours first; a name of ours can't be taken.

    Raises:
        ConfigurationError: one can't be loaded.
    """
    yield from ours(group)
    for name in sorted(names(group) - OURS.get(group, {}).keys()):
        yield find(group, name)


def ours(group: str) -> Iterator[Any]:
    """Yield each object of *group* that comes with this package."""
    found = map(_loaded, filter(_is_there, OURS.get(group, {}).values()))
    return (one for one in found if one is not None)


def names(group: str) -> set[str]:
    """Return the names in *group*, ours and those of other packages."""
    return {*_names_of_ours(group), *(entry.name for entry in entries(group))}


def _names_of_ours(group: str) -> Iterator[str]:
    return (name for name, place in OURS.get(group, {}).items() if _is_there(place))


def entries(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages in *group*; none of them is loaded."""
    if not _packages_may_add(group):
        return ()
    from importlib.metadata import entry_points  # noqa: PLC0415 - it takes long to load

    found = tuple(entry_points(group=group))
    return tuple(one for one in found if one.dist is None or one.dist.name not in _SWITCHES.off)


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


def missing(error: ModuleNotFoundError) -> str | None:
    """Return the plug-in of this package whose folder *error* has not found; None: it's not that.

    >>> missing(ModuleNotFoundError("…", name="sequencer.plugins.web.section"))
    'web'
    """
    name = error.name or ""
    if name == _PLUGINS:
        return "plugins"
    return name.split(".")[2] if name.startswith(f"{_PLUGINS}.") else None


def loaded(part: str | Callable[..., Any]) -> Any:
    """Return *part*, imported if it is text: ``MODULE:NAME``, or a module."""
    if not isinstance(part, str):
        return part
    if ":" not in part:
        return import_module(part)
    from pkgutil import resolve_name  # noqa: PLC0415 - the idle tick has no use for it

    return resolve_name(part)


def _loaded(place: str) -> Any | None:
    """Return what is at *place*; None: its plug-in is not installed."""
    plugin = place.partition(".")[0]
    try:
        return loaded(f"{_PLUGINS}.{place}")
    except ModuleNotFoundError as error:
        found = missing(error)
        if found in (plugin, "plugins"):
            return None
        if found is None:
            raise
        raise SwitchedOff(f"the plug-in {plugin!r}", found) from None
