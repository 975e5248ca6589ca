"""Sections of orchestration.yaml that plug-ins have: each is loaded only if a file has it.

`Schema` knows the names of them all, so an unknown key is found as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from sequencer import extensions
from sequencer.documents.yamlfile import KeyPath
from sequencer.errors import ConfigurationError
from sequencer.model.fields import FieldSpec

Found = tuple[KeyPath, ConfigurationError]
"""What is wrong, and with the value of which key."""


class ConfigSection(Struct, frozen=True):
    """What one section may be."""

    kind: Any
    """Its type: a class of `Section`, or a mapping of them."""
    default: Callable[[], Any]
    """Returns its value where nobody wrote it."""
    problems: Callable[[Any, Any], Iterator[Found]] | None = None
    """Yields what is wrong with a value beyond its type: called with it and the `Check` of all
    settings, which knows agents, workflows and prompts."""


def section(name: str) -> ConfigSection:
    """Return the section called *name*.

    Raises:
        UnknownName: no plug-in has one.
        ConfigurationError: it can't be loaded.
    """
    found: ConfigSection = extensions.needed(extensions.SECTIONS, name, "section")
    return found


class SectionSpec(FieldSpec):
    """The field of a section; its type is loaded when somebody asks for it."""

    def __init__(self, name: str) -> None:
        """Be the field for the section called *name*; without one in the file it is None."""
        super().__init__(None, None, None, {}, exclude=False)
        self.name = self.key = name

    @property
    def annotation(self) -> Any:
        """See `FieldSpec.annotation`."""
        return section(self.name).kind

    def get_default(self) -> Any:
        """See `FieldSpec.get_default`."""
        return section(self.name).default()
