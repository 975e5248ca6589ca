"""Finds the files of a project's flowcharts and task lists, and the file that a name means.

Not checked: what a file contains, except that it has a chart or is a task list.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sequencer import extensions
from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import is_linked_outside
from sequencer.files.yamlfile import KeyPath, decode
from sequencer.model.graph.graph import Graph
from sequencer.model.workflow import Workflow

if TYPE_CHECKING:
    from sequencer.workflows.mermaid.chart import Chart

MAX_CHARS = 2 * 1024 * 1024
"""Maximum number of characters in a page with a chart or a task list."""
SUFFIX = ".md"
FLOW_FOLDERS = ("flows", ".opencode/workflows")
"""Folders of a project in which workflow files are found by their names."""
_HOME_FOLDER = ".config/opencode/workflows"
_MARKS = (b"```mermaid", b"~~~mermaid", b"``` mermaid", b"~~~ mermaid")


Where = Callable[[KeyPath], str]
"""Maps the key path of a value to the place where it was written."""


class GraphFile(Struct, frozen=True, kw_only=True):
    """A flowchart or a task list that can be run, with the file that it comes from."""

    workflow: Workflow
    title: str
    file: Path
    format_place: Callable[[str, KeyPath], str]
    """Maps a node and the path of one of its settings to the place where it was written."""
    version: str | None = None
    warnings: tuple[ConfigurationError, ...] = ()
    """In the order of the file."""
    chart: Chart | None = None
    """None: there is no drawing."""
    mermaid: str = ""
    """The chart's text."""

    @property
    def graph(self) -> Graph:
        """Return the graph of the workflow."""
        return self.workflow.whole_graph

    def locate_setting(self, node: str, *path: str | int) -> str:
        """Return ``file:line:column`` of the setting *path* of *node*."""
        return self.format_place(node, path)


class AmbiguousName(ConfigurationError):
    """Several files have the same name, so none was chosen."""

    def __init__(self, name: str, files: tuple[Path, ...]) -> None:
        """List *files*, which are all called *name*."""
        self.name = name
        self.files = files
        files_text = ", ".join(map(str, files))
        super().__init__(
            f"several workflows are called {name!r}: {files_text}",
            hint="name one of them by its path",
        )


def workflow_folders(project: Path, home: Path) -> tuple[Path, ...]:
    """Return the folders that are searched for workflow files, in order."""
    return (*(project / folder for folder in ("", *FLOW_FOLDERS)), home / _HOME_FOLDER)


def find_flow(name: str, project: Path, home: Path) -> Path:
    """Return the file that *name* means: a path, or a name with or without ``.md``.

    A path is relative to the current folder, or else to *project*.

    Raises:
        AmbiguousName: several folders have a file with that name.
        UnknownName: there is no such file; the existing files are listed.
        UnsafePath: a link in the project leads to a file outside of it.
        ConfigurationError: it is a README, whose charts are only documentation.
    """
    path = _find(name, project, home)
    ensure_within(path, project)
    if _is_readme(path):
        raise ConfigurationError(
            "describes its folder and is not a workflow",
            where=str(path),
            hint="give the workflow another file name",
        )
    return path


def ensure_within(path: Path, project: Path) -> None:
    """Raise UnsafePath if *path* leads through a link out of *project*."""
    if is_linked_outside(path, project):
        raise UnsafePath(
            "a link leads out of the project", where=str(path), hint="name the file itself"
        )


def _find(name: str, project: Path, home: Path) -> Path:
    if "\0" in name or not name.strip():
        raise UnknownName("flow", name, _list_known_names(project, home))
    for base in (Path.cwd(), project):
        path = base / name
        # A bare word means a workflow, even if a folder or a file without a suffix happens to
        # have that name.
        is_path = os.sep in name or path.suffix
        if is_path and path.is_file():
            return path
        if os.sep in name and (suffixed_path := base / f"{name}{SUFFIX}").is_file():
            return suffixed_path
    files = [] if os.sep in name else list(_find_by_name(name, project, home))
    if not files:
        raise UnknownName("flow", name, _list_known_names(project, home))
    if len(files) > 1:
        raise AmbiguousName(name, tuple(files))
    return files[0]


def flow_files(project: Path, home: Path) -> tuple[Path, ...]:
    """Return the files with a chart or a task list in the folders of workflows."""
    files: list[Path] = []
    for folder in workflow_folders(project, home):
        if is_linked_outside(folder, project):
            continue  # none of its files is ever run
        try:
            paths = sorted(folder.iterdir())
        except OSError:
            continue
        for path in paths:
            is_candidate = path.suffix.lower() == SUFFIX and not _is_readme(path)
            is_candidate = is_candidate and not is_linked_outside(path, project)
            if is_candidate and _is_graph(path) and not _is_among(path, files):
                files.append(path)
    return tuple(files)


def _find_by_name(name: str, project: Path, home: Path) -> Iterator[Path]:
    files: list[Path] = []
    file = name if name.lower().endswith(SUFFIX) else f"{name}{SUFFIX}"
    for folder in workflow_folders(project, home):
        path = folder / file
        # Two paths can lead to one file: through a link, or if the home folder is the project.
        if path.is_file() and not _is_among(path, files):
            files.append(path)
            yield path


def _is_among(path: Path, files: list[Path]) -> bool:
    return any(path.samefile(file) for file in files)


def _is_readme(path: Path) -> bool:
    return path.stem.lower() == "readme"


def _is_graph(path: Path) -> bool:
    try:
        data = read_bytes(path, 4 * MAX_CHARS)
    except ConfigurationError:
        return False
    if any(mark in data for mark in _MARKS):
        return True
    text = data.decode("utf-8", "replace")
    return any(file_format.recognizes_text(text) for file_format in iter_formats())


Sections = Callable[[str], Any]
"""Maps the name of a plug-in's section of orchestration.yaml to its value."""


class InlineFormat(Struct, frozen=True):
    """A format for an entry of ``workflows:`` that is not a list of steps."""

    key: str
    """The key of the list of parts; a part is a `Step`, or a subclass of it."""
    kinds: Mapping[str, Any]
    """Key -> type, for `key` and the optional keys next to it."""
    problems: Callable[[Sequence[Any], Sections, Where], list[tuple[KeyPath, ConfigurationError]]]
    """Returns the problems of the list as a whole; it gets all parts as written, including
    refused ones."""
    load: Callable[..., GraphFile]
    """Returns the graph. Arguments: its name, the values of the keys, `Sections`; keywords:
    ``file``, ``where``."""


class FileFormat(Struct, frozen=True):
    """A format of workflow files other than flowcharts."""

    recognizes_text: Callable[[str], bool]
    """Returns whether a text has this format."""
    recognizes_file: Callable[[Path, str | None], bool]
    """The same for a file; the text is None if it is not Markdown or can't be read."""
    load: Callable[..., GraphFile]
    """Returns the graph of a file. Arguments: its path, `Sections` or None; keywords: ``name``
    and ``text``, which may be None."""
    inline: InlineFormat | None = None


def iter_formats() -> Iterator[FileFormat]:
    """Yield the formats of workflow files other than flowcharts."""
    return (file_format for _, file_format in extensions.load_builtins(extensions.FORMATS))


def find_format(path: Path, page: str | None) -> FileFormat | None:
    """Return the format of the file *path* with the text *page*; None: it is a flowchart.

    Raises:
        PluginUnavailable: the plug-in of the format is disabled.
    """
    for name, candidate in extensions.load_builtins(extensions.FORMATS, even_disabled=True):
        if candidate.recognizes_file(path, page):
            file_format: FileFormat = extensions.require(
                extensions.FORMATS, name, "the format", where=str(path)
            )
            return file_format
    return None


def read_markdown_text(path: Path, data: bytes | None = None) -> str | None:
    """Return the text of the file *path*; None: it is not Markdown, or can't be read.

    *data* is its content, if the caller has read it already.
    """
    if path.suffix.lower() != SUFFIX:
        return None
    try:
        # A character has up to four bytes.
        return decode(read_bytes(path, 4 * MAX_CHARS) if data is None else data, path)
    except ConfigurationError:
        return None


def _list_known_names(project: Path, home: Path) -> list[str]:
    return sorted({path.stem for path in flow_files(project, home)})


MAX_LISTED = 20
"""Maximum number of names in a hint, and of unknown names that are compared with known ones."""
MAX_LINKS = 10
"""Maximum number of links of a circle in a message; more of them would not help."""


def suggest_nearest(name: str, known: Collection[str], *, compares: bool = True) -> str:
    """Return a hint that lists *known* and suggests the name that is nearest to *name*.

    >>> suggest_nearest("tset", ["test", "build"])
    "did you mean 'test'? there are: test, build"
    """
    if not known:
        return "there is none"
    matches = get_close_matches(name, known, n=1) if compares else []
    guess = f"did you mean {matches[0]!r}? " if matches else ""
    ellipsis = ", …" if len(known) > MAX_LISTED else ""
    return f"{guess}there are: {', '.join(islice(known, MAX_LISTED))}{ellipsis}"


def shorten_links(links: Sequence[str]) -> list[str]:
    """Return the *links* of a circle for a message; a long circle loses some in the middle."""
    return [*links] if len(links) <= MAX_LINKS else [*links[: MAX_LINKS - 1], "…", links[-1]]
