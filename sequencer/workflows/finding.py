"""Where a project's flowcharts and lists of tasks are, which file a name means, and what it has.

Says nothing about what is in a file, but that it has a chart or is a list of tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequencer import extensions
from sequencer.errors import ConfigurationError, UnknownName, UnsafePath
from sequencer.files.regular import read_bytes
from sequencer.files.textfile import leads_out
from sequencer.files.yamlfile import KeyPath, decode
from sequencer.model.graph.graph import Graph
from sequencer.model.workflow import Workflow

if TYPE_CHECKING:
    from sequencer.workflows.mermaid.chart import Chart

MAX_CHARS = 2 * 1024 * 1024
"""Of a page that has a chart or a list of tasks."""
SUFFIX = ".md"
_FOLDERS = ("", "flows", ".opencode/workflows")
_HOME_FOLDER = ".config/opencode/workflows"
_MARKS = (b"```mermaid", b"~~~mermaid", b"``` mermaid", b"~~~ mermaid")


Where = Callable[[KeyPath], str]
"""From the path of a value to the place where it was written."""


@dataclass(frozen=True, kw_only=True)
class GraphFile:
    """A flowchart or a list of tasks that can be run, and where it is written."""

    workflow: Workflow
    title: str
    description: str
    file: Path
    place_of: Callable[[str, KeyPath], str] = field(repr=False, compare=False)
    """From a node and the path of one of its settings to where that is written."""
    version: str | None = None
    warnings: tuple[ConfigurationError, ...] = ()
    """In the order of the file."""
    chart: Chart | None = None
    """None: nobody has drawn it."""
    mermaid: str = ""
    """The chart's text."""

    @property
    def graph(self) -> Graph:
        """Return the workflow's own."""
        return self.workflow.whole_graph

    def where(self, node: str, *path: str | int) -> str:
        """Return ``file:line:column`` of the setting *path* of *node*."""
        return self.place_of(node, path)


class AmbiguousName(ConfigurationError):
    """Several files have the name, and none was chosen."""

    def __init__(self, name: str, files: tuple[Path, ...]) -> None:
        """List *files*, which are all called *name*."""
        self.name = name
        self.files = files
        listed = ", ".join(map(str, files))
        super().__init__(
            f"several workflows are called {name!r}: {listed}", hint="name one of them by its path"
        )


def folders(project: Path, home: Path) -> tuple[Path, ...]:
    """Return where workflow files are looked for, in order."""
    return (*(project / folder for folder in _FOLDERS), home / _HOME_FOLDER)


def find_flow(name: str, project: Path, home: Path) -> Path:
    """Return the file that *name* means: a path, or a name with or without ``.md``.

    A path is relative to the current folder, else to *project*.

    Raises:
        AmbiguousName: several folders have a file of that name.
        UnknownName: there is none; the files that there are are listed.
        UnsafePath: a link of the project leads to a file outside of it.
        ConfigurationError: it is a README, whose charts show people something.
    """
    found = _found(name, project, home)
    ensure_within(found, project)
    if _is_about_a_folder(found):
        raise ConfigurationError(
            "describes its folder and is not a workflow",
            where=str(found),
            hint="give the workflow another file name",
        )
    return found


def ensure_within(path: Path, project: Path) -> None:
    """Raise UnsafePath if a link of *project* leads *path* to a file outside of it."""
    if leads_out(path, project):
        raise UnsafePath(
            "a link leads out of the project", where=str(path), hint="name the file itself"
        )


def _found(name: str, project: Path, home: Path) -> Path:
    if "\0" in name or not name.strip():
        raise UnknownName("flow", name, _known(project, home))
    for base in (Path.cwd(), project):
        path = base / name
        # A folder of that name, or a file without a suffix that a bare word happens to
        # name, is not what was meant.
        is_path = os.sep in name or path.suffix
        if is_path and path.is_file():
            return path
        if os.sep in name and (with_suffix := base / f"{name}{SUFFIX}").is_file():
            return with_suffix
    found = [] if os.sep in name else list(_called(name, project, home))
    if not found:
        raise UnknownName("flow", name, _known(project, home))
    if len(found) > 1:
        raise AmbiguousName(name, tuple(found))
    return found[0]


def flow_files(project: Path, home: Path) -> tuple[Path, ...]:
    """Return the files in the folders of workflows that have a chart or are a list of tasks."""
    found: list[Path] = []
    for folder in folders(project, home):
        try:
            paths = sorted(folder.iterdir())
        except OSError:
            continue
        for path in paths:
            is_meant = path.suffix.lower() == SUFFIX and not _is_about_a_folder(path)
            is_meant = is_meant and not leads_out(path, project)
            if is_meant and _is_graph(path) and not _is_among(path, found):
                found.append(path)
    return tuple(found)


def _called(name: str, project: Path, home: Path) -> Iterator[Path]:
    found: list[Path] = []
    file = name if name.lower().endswith(SUFFIX) else f"{name}{SUFFIX}"
    for folder in folders(project, home):
        path = folder / file
        # The same file by way of a link, or of a project in the home folder, is one.
        if path.is_file() and not _is_among(path, found):
            found.append(path)
            yield path


def _is_among(path: Path, found: list[Path]) -> bool:
    return any(path.samefile(other) for other in found)


def _is_about_a_folder(path: Path) -> bool:
    return path.stem.lower() == "readme"


def _is_graph(path: Path) -> bool:
    try:
        data = read_bytes(path, 4 * MAX_CHARS)
    except ConfigurationError:
        return False
    if any(mark in data for mark in _MARKS):
        return True
    text = data.decode("utf-8", "replace")
    return any(one.recognizes_text(text) for one in formats())


Sections = Callable[[str], Any]
"""From the name of a plug-in's section of orchestration.yaml to its value."""


@dataclass(frozen=True)
class InlineFormat:
    """A format for an entry of ``workflows:`` that is not a list of steps."""

    key: str
    """The key of the list of parts; a part is a `Step`, or a subclass of it."""
    kinds: Mapping[str, Any]
    """Key -> type, for `key` and the optional keys next to it."""
    problems: Callable[[Sequence[Any], Sections, Where], list[tuple[KeyPath, ConfigurationError]]]
    """Returns what is wrong with the parts as a whole, as they were written, refused ones too."""
    load: Callable[..., GraphFile]
    """Returns the graph: called with its name, the values of the keys, and `Sections`, and by
    keyword with ``file`` and ``where``."""


@dataclass(frozen=True)
class FileFormat:
    """A format of workflow files besides flowcharts."""

    recognizes_text: Callable[[str], bool]
    """Returns whether a text is meant to be one."""
    recognizes_file: Callable[[Path, str | None], bool]
    """The same for a file, whose text is given if it is Markdown and can be read."""
    load: Callable[..., GraphFile]
    """Returns the graph of a file: called with its path and `Sections`, or None, and by keyword
    with ``name`` and ``text``, both perhaps None."""
    inline: InlineFormat | None = None


def formats() -> Iterator[FileFormat]:
    """Yield the formats of workflow files besides flowcharts."""
    return (found for _, found in extensions.ours(extensions.FORMATS))


def format_of(path: Path, page: str | None) -> FileFormat | None:
    """Return the format of the file *path* with the text *page*; None: it is a flowchart's.

    Raises:
        PluginUnavailable: its plug-in is disabled.
    """
    for name, one in extensions.ours(extensions.FORMATS, even_disabled=True):
        if one.recognizes_file(path, page):
            found: FileFormat = extensions.needed(
                extensions.FORMATS, name, "the format", where=str(path)
            )
            return found
    return None


def page_of(path: Path, data: bytes | None = None) -> str | None:
    """Return the text of the file *path*; None: it is no Markdown, or can't be read.

    *data* is its content, where somebody has read it already.
    """
    if path.suffix.lower() != SUFFIX:
        return None
    try:
        # A character has up to four bytes.
        return decode(read_bytes(path, 4 * MAX_CHARS) if data is None else data, path)
    except ConfigurationError:
        return None


def _known(project: Path, home: Path) -> list[str]:
    return sorted({path.stem for path in flow_files(project, home)})


MAX_LISTED = 20
"""Names in one hint, and unknown names that are compared with the known ones."""
MAX_TOLD = 10
"""Links of one circle that are told; the rest is as good as these."""


def nearest(name: str, known: Collection[str], *, compares: bool = True) -> str:
    """Return a hint that names the nearest of *known* to *name*, and lists them.

    >>> nearest("tset", ["test", "build"])
    "did you mean 'test'? there are: test, build"
    """
    if not known:
        return "there is none"
    near = get_close_matches(name, known, n=1) if compares else []
    guess = f"did you mean {near[0]!r}? " if near else ""
    more = ", …" if len(known) > MAX_LISTED else ""
    return f"{guess}there are: {', '.join(islice(known, MAX_LISTED))}{more}"


def few(links: Sequence[str]) -> list[str]:
    """Return the *links* of a circle as far as a message has room for them, the last included."""
    return [*links] if len(links) <= MAX_TOLD else [*links[: MAX_TOLD - 1], "…", links[-1]]
