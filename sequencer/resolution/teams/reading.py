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


def page_of(path: Path) -> str | None:
    """Return the text of the file *path*; None: it is no Markdown, or can't be read."""
    if path.suffix.lower() != MARKDOWN_SUFFIX:
        return None
    try:
        # A character has up to four bytes.
        return decode(read_bytes(path, 4 * MAX_CHARS), path)
    except ConfigurationError:
        return None


def has_tasks(path: Path, page: str | None) -> bool:
    """Return whether the file *path* with the text *page* is meant to be a list of tasks."""
    return path.suffix.lower() in YAML_SUFFIXES or (page is not None and is_task_list(page))


def load_tasks(
    path: Path, roles: Mapping[str, Role], *, name: str | None = None, text: str | None = None
) -> TaskList:
    """Return the list of tasks of the file *path*, YAML or Markdown, called *name*.

    *text* is its content, where somebody has read it already.

    Raises:
        ConfigurationError: see `lists.list_of`; or the file can't be read.
    """
    if path.suffix.lower() in YAML_SUFFIXES:
        return list_of(parse(read_bytes(path), path), roles, name=name)
    if text is None:
        text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    document, told = read_page(text, path)
    return list_of(document, roles, name=name, told=told)
