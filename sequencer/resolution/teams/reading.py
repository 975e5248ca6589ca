"""A file that is a list of tasks: which files are, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sequencer.documents.file import read_bytes
from sequencer.documents.reader import decode, parse
from sequencer.errors import ConfigurationError
from sequencer.model.team import Role
from sequencer.resolution.teams.lists import TaskList, list_of
from sequencer.resolution.teams.markdown import MAX_CHARS, is_task_list, read_page

YAML_SUFFIXES = (".yaml", ".yml")
MARKDOWN_SUFFIX = ".md"


def has_tasks(path: Path) -> bool:
    """Return whether the file *path* is meant to be a list of tasks; False if it can't be read."""
    suffix = path.suffix.lower()
    if suffix in YAML_SUFFIXES:
        return True
    if suffix != MARKDOWN_SUFFIX:
        return False
    try:
        # A character has up to four bytes.
        return is_task_list(decode(read_bytes(path, 4 * MAX_CHARS), path))
    except ConfigurationError:
        return False


def load_tasks(path: Path, roles: Mapping[str, Role], *, name: str | None = None) -> TaskList:
    """Return the list of tasks of the file *path*, YAML or Markdown, called *name*.

    Raises:
        ConfigurationError: see `lists.list_of`; or the file can't be read.
    """
    if path.suffix.lower() in YAML_SUFFIXES:
        return list_of(parse(read_bytes(path), path), roles, name=name)
    text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    document, told = read_page(text, path)
    return list_of(document, roles, name=name, told=told)
