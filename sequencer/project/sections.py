"""Sections of orchestration.yaml that plug-ins define: each is loaded only if a file has it.

`Schema` knows all their names, so an unknown key is still an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, get_origin

from msgspec import Struct

from sequencer import extensions
from sequencer.errors import ConfigurationError
from sequencer.files.yamlfile import KeyPath
from sequencer.frozen.fields import Checked, LazySpec
from sequencer.model.step import Step
from sequencer.packages import ensure_fields

LocatedError = tuple[KeyPath, ConfigurationError]
"""The key with the wrong value, and the error."""


class SectionSteps(Struct, frozen=True):
    """Step templates in a section, which workflows use by name."""

    key: str
    """The key in the section that maps names to templates."""
    every: Callable[[Any], Mapping[str, tuple[Step, Any]]]
    """Called with the value of the section; returns name -> (step, object that contains it),
    including the built-in templates."""


class ConfigSection(Struct, frozen=True):
    """The definition of one section."""

    kind: Any
    """The type: a subclass of `Section`, or a mapping of them."""
    default: Callable[[], Any]
    """Returns the value if the file doesn't set it."""
    problems: Callable[[Any, Any], Iterator[LocatedError]] | None = None
    """Yields the problems that the type can't show. Called with the value and the `Check` of all
    settings, which knows agents, workflows and prompts."""
    steps: SectionSteps | None = None
    """Trusting a project includes the permissions of these steps."""

    def __post_init__(self) -> None:
        """Reject wrong types now, so that the traceback points into the package."""
        if not _may_be_set(self.kind):
            kind = getattr(self.kind, "__name__", None) or repr(self.kind)
            raise TypeError(f"{kind} is not a Section, nor another type that a setting may have")
        none_type = type(None)
        ensure_fields(self, default=Callable, problems=(Callable, none_type))
        ensure_fields(self, steps=(SectionSteps, none_type))


_PLAIN = (str, int, float, bool, list, dict, object, Any)


def _may_be_set(kind: Any) -> bool:
    is_ours = isinstance(kind, type) and issubclass(kind, (Checked, Enum))
    return is_ours or kind in _PLAIN or get_origin(kind) is not None


def section(name: str) -> ConfigSection:
    """Return the section called *name*, even if its plug-in is disabled, for its default.

    Raises:
        UnknownName: no plug-in has such a section.
        ConfigurationError: it can't be loaded.
    """
    config_section = _find_section(name)
    if config_section is None:
        config_section = extensions.require(extensions.SECTIONS, name, "section")
    return config_section


def _find_section(name: str) -> ConfigSection | None:
    return extensions.find(extensions.SECTIONS, name, even_disabled=True)


def section_spec(name: str) -> LazySpec:
    """Return the field of `Schema` for the section called *name*, even if it is disabled."""

    def kind() -> Any:
        config_section = _find_section(name)
        return Any if config_section is None else config_section.kind

    def default() -> Any:
        config_section = _find_section(name)
        return None if config_section is None else _get_default_options(config_section, name)

    return LazySpec(name, kind, default)


def section_value(holder: Any, name: str) -> Any:
    """Return the section called *name* of *holder*, a `Schema`, or its default.

    Raises:
        UnknownName: no plug-in has such a section.
    """
    value = getattr(holder, name, None)
    return _get_default_options(section(name), name) if value is None else value


def _get_default_options(config_section: ConfigSection, name: str) -> Any:
    with extensions.package_code(extensions.SECTIONS, name):
        return config_section.default()
