"""Task lists that a person has written: check them and turn them into workflows.

A list comes from its own file (YAML or Markdown) or from orchestration.yaml. A Markdown page has
a section for each task, with the fields right below the heading ``## id: Subject``. It is
converted to the same data as a YAML list, with the position of each part, so that the same
checks work for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sequencer.errors import ConfigurationError, raise_all
from sequencer.files.keys import find_problems
from sequencer.files.regular import read_bytes
from sequencer.files.yamlfile import Document, KeyPath, Position, decode, parse, parse_text
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import MAX_PURPOSE
from sequencer.plugins.teams.entries import Entries, ListFile, Size, TaskEntry
from sequencer.plugins.teams.graphs import build_task_workflow, list_problems
from sequencer.plugins.teams.options import roles_in
from sequencer.plugins.teams.team import Role, Task
from sequencer.workflows.finding import (
    MAX_CHARS,
    FileFormat,
    GraphFile,
    InlineFormat,
    Sections,
    Where,
)

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_PLACE = re.compile(r":(\d+):(\d+)$")


def read_task_list(
    document: Document,
    roles: Mapping[str, Role],
    *,
    name: str | None = None,
    errors: Iterable[ConfigurationError] = (),
) -> GraphFile:
    """Return the task list in *document*.

    Its name is *name*, else the name in the document, else the file's name. *errors* were found
    while the file was read.

    Raises:
        ConfigurationError: the list has a problem; `ConfigurationErrors`: it has several, in the
            order of the file.
    """
    placed_errors = [(_find_line(error), error) for error in errors]
    try:
        list_file = ListFile.model_validate(document.data)
    except ValidationError as failure:
        list_file = None
        placed_errors += [
            (document.position(problem.path) or (0, 0), problem.error)
            for problem in find_problems(failure, ListFile, document.locate)
        ]
    in_list = list_errors(document.data.get("tasks"), roles, document.locate)
    placed_errors += [(document.position(path) or (0, 0), error) for path, error in in_list]
    raise_all([error for _, error in sorted(placed_errors, key=itemgetter(0))])
    if list_file is None:
        raise AssertionError("the list is invalid, but no error was found")
    name = name or list_file.name or document.file.stem or "team"
    graph = inline_list(
        name, list_file.as_tasks(), roles, list_file.size, file=document.file, where=document.locate
    )
    purpose = list_file.description[:MAX_PURPOSE]
    workflow = graph.workflow.replace(description=purpose)
    return replace(graph, title=list_file.title or name, workflow=workflow)


def inline_list(
    name: str,
    tasks: Sequence[Task],
    roles: Mapping[str, Role],
    size: int | None,
    *,
    file: Path,
    where: Where,
) -> GraphFile:
    """Return *tasks*, which are a part of *file*, as the task list called *name*.

    Raises:
        ConfigurationError: see `graphs.build_task_workflow`.
    """
    workflow = build_task_workflow(name, tasks, roles, size=size)
    order = workflow.whole_graph.order
    return GraphFile(
        workflow=workflow,
        title=name,
        file=file,
        format_place=lambda node, path: where(("tasks", order[node], *path)),
    )


SHARED = ("full-development", "debugger-full", "orchestrator-full")
"""Procedures that a team can work on."""
_BUILTIN = Path(__file__).parents[2] / "builtin" / "teams.yaml"
_HYPOTHESIS = "hypothesis-"


def builtin_tasks(procedure: str, size: int = 3) -> tuple[Task, ...]:
    """Return the tasks of a team of *size* for *procedure*, one of `SHARED`.

    In a search for a bug, one member reads the history and each other member tests a hypothesis;
    there are at least two hypotheses.

    >>> [task.id for task in builtin_tasks("debugger-full", 4) if not task.blocked_by]
    ['hypothesis-a', 'hypothesis-b', 'hypothesis-c', 'history']
    """
    entries = parse(_BUILTIN.read_bytes(), _BUILTIN).data[procedure]
    hypotheses = [entry["id"] for entry in entries if entry["id"].startswith(_HYPOTHESIS)]
    spare_ids = set(hypotheses[max(size - 1, 2) :])
    needed_entries = (entry for entry in entries if entry["id"] not in spare_ids)
    return tuple(
        Task.model_validate(
            {
                **entry,
                "blocked_by": [
                    name for name in entry.get("blocked_by", ()) if name not in spare_ids
                ],
            }
        )
        for entry in needed_entries
    )


def list_errors(
    listed: object, roles: Mapping[str, Role], where: Where
) -> list[tuple[KeyPath, ConfigurationError]]:
    """Return (path, error) for each problem between the entries *listed*.

    An invalid field is left out of its entry, so that one mistake causes only one error. Errors of
    single entries are not returned.
    """
    entries = listed if isinstance(listed, (list, tuple)) else ()
    tasks = {
        place: task for place, entry in enumerate(entries) if (task := _parse_leniently(entry))
    }
    if not tasks:
        return []
    places = list(tasks)
    lost_ids = {str(entry.get("id")) for entry in entries if isinstance(entry, Mapping)}
    errors = []
    for problem in list_problems(list(tasks.values()), roles, most=len(tasks), lost=lost_ids):
        path: KeyPath = ("tasks",)
        if problem.path and isinstance(problem.path[0], int):
            path = (*path, places[problem.path[0]], *problem.path[1:])
        error = ConfigurationError(problem.message, where=where(path), hint=problem.hint)
        errors.append((path, error))
    return errors


def _parse_leniently(entry: object) -> Task | None:
    """Return the task of *entry* without its invalid fields; None: it has no valid id."""
    try:
        return TaskEntry.model_validate(entry).as_task()
    except ValidationError as failure:
        invalid_keys = {error["loc"][0] for error in failure.errors() if error["loc"]}
    if not isinstance(entry, Mapping):
        return None
    rest = {key: entry[key] for key in ("id", "blocked_by", "role") if key in entry}
    rest = {key: value for key, value in rest.items() if key not in invalid_keys}
    try:
        return TaskEntry.model_validate({"subject": "refused", **rest}).as_task()
    except ValidationError:
        return None


def _find_line(error: ConfigurationError) -> Position:
    place = _PLACE.search(error.where or "")
    return (int(place[1]), int(place[2])) if place else (0, 0)


YAML_SUFFIXES = (".yaml", ".yml")


def has_tasks(path: Path, page: str | None) -> bool:
    """Return whether the file *path* with the text *page* is a task list."""
    return path.suffix.lower() in YAML_SUFFIXES or (page is not None and is_task_list(page))


def load_tasks(
    path: Path, sections: Sections | None, *, name: str | None = None, text: str | None = None
) -> GraphFile:
    """Return the task list called *name* of the file *path*, YAML or Markdown.

    *sections* returns the section with the roles. *text* is the content if it was read before.

    Raises:
        ConfigurationError: see `read_task_list`; or the file can't be read.
    """
    roles = roles_in(sections)
    if path.suffix.lower() in YAML_SUFFIXES:
        document = parse(read_bytes(path), path) if text is None else parse_text(text, path)
        return read_task_list(document, roles, name=name)
    if text is None:
        text = decode(read_bytes(path, 4 * MAX_CHARS), path)
    document, errors = read_page(text, path)
    return read_task_list(document, roles, name=name, errors=errors)


_ID = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_HEADING = re.compile(rf"(?P<id>{_ID})[ \t]*(?::|—|–)[ \t]+(?P<subject>\S.*)")  # noqa: RUF001 - an en dash is meant
_HEADING_LINE = re.compile(rf"^ {{0,3}}##[ \t]+{_HEADING.pattern}$", re.MULTILINE)
_FIELD = re.compile(r"[a-z_]+:(?=\s|$)")
_FRONT = re.compile(
    r"(?:[ \t]*\n)*---[ \t]*\n(?P<text>.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
_MERMAID = re.compile(r"^ {0,3}(?:```+|~~~+)[ \t]*mermaid\b", re.MULTILINE)
_KIND = re.compile(r"^kind:[ \t]*team[ \t]*$", re.MULTILINE)
_TOP_KEYS = frozenset({"kind", "name", "title", "description", "size"})


def is_task_list(text: str) -> bool:
    r"""Return whether *text* is a task list and not a flowchart.

    It is one if its front matter has ``kind: team``, or if it has a task's heading and no chart.

    >>> is_task_list("# Title\n\n## build: Build it\n"), is_task_list("# Title\n\n## Notes\n")
    (True, False)
    """
    text = _normalize_text(text)
    front = _FRONT.match(text)
    if front is not None and _KIND.search(front["text"]):
        return True
    return _MERMAID.search(text) is None and _HEADING_LINE.search(text) is not None


def read_page(text: str, file: Path) -> tuple[Document, list[ConfigurationError]]:
    """Return the page *text*, the content of *file*, as a document, and the errors in it.

    Raises:
        ConfigurationError: it is too large.
    """
    if len(text) > MAX_CHARS:
        raise ConfigurationError(f"has more than {MAX_CHARS} characters", where=f"{file}:1:1")
    page = _Page(_normalize_text(text), file)
    return page.document(), page.errors


def _normalize_text(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - most lists are not Markdown

    # No underlined headings: people often write '---' as a horizontal line.
    return MarkdownIt("commonmark").disable("lheading")


class _Section(Struct, frozen=True):
    line: int
    """The heading's line, from 0."""
    level: int
    text: str
    end: int
    """The line after the section, from 0."""


class _Page(Struct):
    """One page while it is parsed."""

    text: str
    file: Path
    errors: list[ConfigurationError] = msgspec.field(default_factory=list)
    positions: dict[KeyPath, Position] = msgspec.field(default_factory=dict)

    def document(self) -> Document:
        """Return the page as data; see `read_page`."""
        lines = self.text.split("\n")
        data, start = self._parse_front_matter()
        title, description, sections = self._sections(lines, start)
        if title:
            data.setdefault("title", title)
        if description:
            data.setdefault("description", description)
        tasks: list[dict[str, Any]] = []
        for section in sections:
            heading = _HEADING.fullmatch(section.text.strip())
            if heading is None:
                hint = "a task's heading is '## id: What is to be done'; use ### within a task"
                message = f"{section.text[:60]!r} is not a task's heading"
                self._refuse(message, section.line, hint)
                continue
            self.positions[("tasks", len(tasks))] = (section.line + 1, 1)
            tasks.append(self._task(heading, section, lines, len(tasks)))
        if tasks:
            data["tasks"] = tasks
        return Document(self.file, data, self.positions)

    def _refuse(self, message: str, line: int, hint: str | None = None) -> None:
        where = f"{self.file}:{line + 1}:1"
        self.errors.append(ConfigurationError(message, where=where, hint=hint))

    def _parse_front_matter(self) -> tuple[dict[str, Any], int]:
        """Return the front matter and the line after it, from 0."""
        front = _FRONT.match(self.text)
        if front is None:
            return {}, 0
        first_line = self.text.count("\n", 0, front.start("text")) + 1
        data = self._fields(front["text"], first_line, ())
        for key in sorted(data.keys() - _TOP_KEYS):
            line = self.positions[(key,)][0] - 1
            hint = f"allowed at the top: {', '.join(sorted(_TOP_KEYS))}"
            self._refuse(f"{key!r} has no meaning at the top of a list of tasks", line, hint)
        fields = {key: value for key, value in data.items() if key in _TOP_KEYS}
        return fields, self.text.count("\n", 0, front.end())

    def _fields(self, text: str, first_line: int, parent_path: KeyPath) -> dict[str, Any]:
        try:
            document = parse_text(text, self.file, first_line)
        except ConfigurationError as error:
            self.errors.append(error)
            return {}
        self.positions.update(
            {(*parent_path, *path): position for path, position in document.positions.items()}
        )
        return document.data

    def _sections(self, lines: list[str], start: int) -> tuple[str, str, list[_Section]]:
        """Return the title, the text between it and the first task, and the tasks' sections."""
        headings = list(self._headings(lines, start))
        tasks = [section for section in headings if section.level == 2]  # noqa: PLR2004 - "##"
        titles = [
            heading
            for heading in headings
            if heading.level == 1 and (not tasks or heading.line < tasks[0].line)
        ]
        first_task = tasks[0].line if tasks else len(lines)
        after_title = titles[0].line + 1 if titles else start
        description = "\n".join(lines[after_title:first_task]).strip()
        ends = [*(section.line for section in tasks[1:]), len(lines)][: len(tasks)]
        sections = [
            _Section(task.line, task.level, task.text, end)
            for task, end in zip(tasks, ends, strict=True)
        ]
        return (titles[0].text if titles else ""), description, sections

    def _headings(self, lines: list[str], start: int) -> Iterator[_Section]:
        tokens = _parser().parse("\n".join(lines[start:]))
        for place, token in enumerate(tokens):
            is_heading = token.type == "heading_open" and token.level == 0
            if is_heading and token.tag in ("h1", "h2") and token.map is not None:
                text = tokens[place + 1].content
                yield _Section(token.map[0] + start, int(token.tag[1]), text, 0)

    def _task(
        self, heading: re.Match[str], section: _Section, lines: list[str], place: int
    ) -> dict[str, Any]:
        path: KeyPath = ("tasks", place)
        start = section.line + 1
        end = start
        if start < section.end and _FIELD.match(lines[start]):
            while end < section.end and lines[end].strip():
                end += 1
        fields = self._fields("\n".join(lines[start:end]), start + 1, path)
        for key in ("id", "subject"):
            if key in fields:
                line = self.positions[(*path, key)][0] - 1
                self._refuse(f"{key!r} is already in the heading", line)
            self.positions[(*path, key)] = (section.line + 1, 1)
        description = "\n".join(lines[end : section.end]).strip()
        if description and "description" in fields:
            line = self.positions[(*path, "description")][0] - 1
            self._refuse("the description is given twice: here and below", line)
        entry = {**fields, "id": heading["id"], "subject": heading["subject"].strip()}
        return {**entry, "description": description} if description else entry


def _inline_problems(
    entries: Sequence[Any], sections: Sections, where: Where
) -> list[tuple[KeyPath, ConfigurationError]]:
    return list_errors(entries, roles_in(sections), where)


def _load_inline(
    name: str, values: Mapping[str, Any], sections: Sections, *, file: Path, where: Where
) -> GraphFile:
    tasks = tuple(entry.as_task() for entry in values["tasks"])
    return inline_list(name, tasks, roles_in(sections), values["size"], file=file, where=where)


FORMAT = FileFormat(
    recognizes_text=is_task_list,
    recognizes_file=has_tasks,
    load=load_tasks,
    inline=InlineFormat(
        "tasks", {"tasks": Entries, "size": Size | None}, _inline_problems, _load_inline
    ),
)
"""Task lists as a format of workflow files."""
