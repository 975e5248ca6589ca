"""The seven points at which hooks are called, and the functions that are called at each.

A function that looks like a hook but would never be called, or not the way its author expects,
is refused when it is loaded. `calling` decides which values a hook gets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any

import pluggy
from msgspec import Struct

from sequencer.engine.hooking import HookContext
from sequencer.errors import ConfigurationError, UnknownName
from sequencer.model.head import Head
from sequencer.model.outcome import Decision, Outcome
from sequencer.model.request import Request
from sequencer.model.step import Step
from sequencer.model.workflow import Workflow

PROJECT = "sequencer"
PREFIX = "sequencer_"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a hook file; ``specname=`` names its point if its own name does not."""


class HookPoints:
    """The hooks that a project can write; None always means "no opinion"."""

    @hookspec(firstresult=True)
    def sequencer_procedure(self, request: Request, chosen: str) -> str | None:
        """Return a procedure to use instead of *chosen*; the first answer wins."""

    @hookspec
    def sequencer_steps(
        self, request: Request, workflow: Workflow
    ) -> Workflow | list[Step] | tuple[Step, ...] | None:
        """Return the steps of the run; each hook gets the previous hook's result."""

    @hookspec
    def sequencer_prompt(self, context: HookContext, text: str) -> str | None:
        """Return another prompt; each hook gets the previous hook's result."""

    @hookspec
    def sequencer_system_prompt(self, context: HookContext, text: str | None) -> str | None:
        """Return another system prompt, "" for none; each hook gets the previous hook's result."""

    @hookspec(firstresult=True)
    def sequencer_model(self, context: HookContext, model: str | None) -> str | None:
        """Return another model; the first answer wins."""

    @hookspec(firstresult=True)
    def sequencer_transition(self, context: HookContext, outcome: Outcome) -> Decision | None:
        """Return where the run goes after the step; the first answer wins."""

    @hookspec
    def sequencer_completed(self, context: HookContext, head: Head) -> None:
        """React to a completed run; all hooks are called."""


POINTS = tuple(name for name in vars(HookPoints) if name.startswith(PREFIX))


class Plugin(Struct, frozen=True):
    """A module or object with hooks, and its name in messages."""

    name: str
    """Path of a file in the project, or distribution and entry point."""
    value: Any
    """A module or an object."""
    package: str | None = None
    """The distribution; None: it is a file of the project."""


class Implementation(Struct, frozen=True):
    """One function that is called at one point."""

    point: str
    plugin: str
    where: str
    """File and line."""
    file: str | None
    """The file alone, as it is in the frames of a traceback."""
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    package: str | None = None
    """The distribution of its plug-in; None: it is in a file of the project."""

    def __call__(self, **facts: Any) -> Any:
        """Call the function with the *facts* that its parameters name, and return its answer."""
        return self.function(**{name: facts[name] for name in self.arguments})


def implementations(plugins: Iterable[Plugin]) -> Mapping[str, tuple[Implementation, ...]]:
    """Return the functions that are called at each point, in the order of *plugins*.

    ``tryfirst`` and ``trylast`` of a marker override that order.

    Raises:
        ConfigurationError: a plugin has no hook, or a hook that can't be called as its author
            expects.
    """
    plugins = [*plugins]
    packages = {plugin.name: plugin.package for plugin in plugins}
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(HookPoints)
    # pluggy calls the plugin first that was registered last.
    for plugin in reversed([_check_plugin(manager, plugin) for plugin in plugins]):
        try:
            manager.register(plugin.value, plugin.name)
        except (ValueError, pluggy.PluginValidationError) as error:
            message = f"the hooks can't be registered: {error}"
            raise ConfigurationError(message, where=plugin.name) from error
    by_point: dict[str, tuple[Implementation, ...]] = {}
    for point in POINTS:
        hooks = reversed(getattr(manager.hook, point).get_hookimpls())
        by_point[point] = tuple(
            Implementation(
                point,
                hook.plugin_name,
                format_location(hook.function),
                code.co_filename if (code := _get_code(hook.function)) else None,
                hook.function,
                tuple(hook.argnames),
                packages.get(hook.plugin_name),
            )
            for hook in hooks
        )
    return by_point


def format_location(function: object) -> str:
    """Return the file and line of *function*; its repr if they are unknown."""
    code = _get_code(function)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


def _get_code(function: object) -> CodeType | None:
    code = getattr(_unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _unwrap(function: object) -> Any:
    """Return the function itself, without the wrappers of a class or a decorator."""
    inner_function: Any = function
    return inspect.unwrap(getattr(inner_function, "__func__", inner_function))


def _check_plugin(manager: pluggy.PluginManager, plugin: Plugin) -> Plugin:
    is_empty = True
    for name in dir(plugin.value):
        options = manager.parse_hookimpl_opts(plugin.value, name)
        if options is None:
            _refuse_unmarked(plugin.value, name)
            continue
        is_empty = False
        function = getattr(plugin.value, name)
        point = options.get("specname") or name
        if point not in POINTS:
            raise UnknownName("hook", point, POINTS, where=format_location(function))
        if options.get("wrapper") or options.get("hookwrapper"):
            raise ConfigurationError(
                f"{name} is a wrapper, which does not work here",
                where=format_location(function),
                hint="write a plain function; each hook gets the previous hook's result",
            )
        _refuse_signature(point, name, function)
    if is_empty:
        raise ConfigurationError(
            "it has no hooks",
            where=plugin.name,
            hint=f"mark functions with @sequencer.hookimpl; hooks: {', '.join(POINTS)}",
        )
    return plugin


def _refuse_unmarked(value: object, name: str) -> None:
    """Refuse a function that has the name of a hook but no marker: it would never be called."""
    if not name.startswith(PREFIX):
        return
    function = inspect.getattr_static(value, name)
    is_own = getattr(function, "__module__", None) == getattr(value, "__name__", None)
    if name in POINTS or (is_own and inspect.isfunction(function)):
        raise ConfigurationError(
            f"{name} is not marked as a hook and would never be called",
            where=format_location(function),
            hint="put @sequencer.hookimpl above it, or give it another name",
        )


def _refuse_signature(point: str, name: str, function: Any) -> None:
    location = format_location(function)
    inner_function = _unwrap(function)
    is_other = (
        inspect.iscoroutinefunction(inner_function)
        or inspect.isgeneratorfunction(inner_function)
        or inspect.isasyncgenfunction(inner_function)
    )
    if is_other:
        raise ConfigurationError(
            f"{name} is async or a generator, but nothing would wait for it",
            where=location,
            hint="write a plain function that returns its answer",
        )
    parameter_names = [
        arg for arg in inspect.signature(getattr(HookPoints, point)).parameters if arg != "self"
    ]
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name not in parameter_names:
            raise UnknownName(
                "argument", parameter.name, parameter_names, where=f"{location}: {name}"
            )
        is_plain = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if not is_plain or parameter.default is not parameter.empty:
            raise ConfigurationError(
                f"{parameter.name} of {name} has a default, or is positional or keyword only; "
                "it would never be passed",
                where=location,
                hint=f"write def {name}({', '.join(parameter_names)})",
            )
