"""Front matter and node settings: from YAML to checked values that know their lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from sequencer.documents.keys import dotted
from sequencer.documents.problems import problems_of
from sequencer.documents.reader import Document, KeyPath, parse_text
from sequencer.errors import ConfigurationError
from sequencer.resolution.flowcharts.chart import Position
from sequencer.resolution.flowcharts.definition import TWINS, FrontMatter, NodeSettings, Settings
from sequencer.resolution.flowcharts.markdown import Part, Parts, Section
from sequencer.resolution.flowcharts.problems import Findings

_Model = TypeVar("_Model", bound=Settings)
_CODES: dict[str | int, str] = {
    "retry": "E-RETRY",
    "timeout": "E-TIMEOUT",
    "onTimeout": "E-TIMEOUT",
    "options": "E-OPTION",
    "tools": "E-TOOLS",
    "model": "E-MODEL",
    "state": "E-STATE",
    "entrypoint": "E-ENTRY",
    "onError": "E-ONERROR",
}
"""By the key that is wrong, or one above it; any other key is the section's own code."""


@dataclass(frozen=True, slots=True)
class Front:
    """The front matter."""

    values: FrontMatter
    document: Document

    def at(self, *path: str | int) -> Position | None:
        """Return where *path* is written."""
        return self.document.position(path)


@dataclass(frozen=True, slots=True)
class NodeSource:
    """What the file says about one node, apart from the chart."""

    values: NodeSettings
    document: Document
    section: Section | None
    """None: the node is in the chart alone."""

    @property
    def prompt(self) -> str:
        """Return the text that follows the settings."""
        return self.section.prompt.text if self.section else ""

    def at(self, *path: str | int) -> Position | None:
        """Return where *path* is written, else the section's heading."""
        return self.document.position(path) or (
            (self.section.line, 1) if self.section is not None else None
        )

    def written(self, *path: str) -> bool:
        """Return whether the key *path* is there and has a value."""
        here: Any = self.document.data
        for key in path:
            if not isinstance(here, Mapping) or here.get(key) is None:
                return False
            here = here[key]
        return True

    def path_of(self, key: str) -> tuple[str, ...]:
        """Return where *key* is written that may stand in ``config`` as well."""
        return (key,) if self.written(key) else ("config", key)


def read_front(parts: Parts, overrides: Mapping[str, Any], findings: Findings) -> Front:
    """Return the front matter of *parts* with *overrides* laid over it."""
    subject = findings.file.name
    document = _document(parts.front, "E-FRONT", subject, findings)
    data = dict(document.data)
    for key, value in overrides.items():
        below = data.get(key)
        is_laid_over = key == "config" and isinstance(below, dict)
        data[key] = {**below, **value} if is_laid_over and below is not None else value
    document = Document(document.file, data, document.positions)
    values = _checked(FrontMatter, document, ("E-FRONT", subject), None, findings)
    return Front(values or FrontMatter(), document)


def read_sections(
    sections: Iterable[Section], timeouts: Mapping[str, int], findings: Findings
) -> dict[str, NodeSource]:
    """Return what *sections* say about each node; *timeouts* replace what is written.

    Of two sections of one id the first counts, and the second is a problem.
    """
    found: dict[str, NodeSource] = {}
    for section in sections:
        first = found.get(section.id)
        if first is None:
            found[section.id] = _node_source(section, timeouts.get(section.id), findings)
        elif first.section is not None:
            detail = f"a second section of this id; the first one is in line {first.section.line}"
            findings.error("E-SECTION", section.id or "###", detail, (section.line, 1))
    return found


def without_section(node: str, timeouts: Mapping[str, int], findings: Findings) -> NodeSource:
    """Return what is said about a node that has no section."""
    return _checked_source(
        Document(findings.file, {}, {}), node, None, timeouts.get(node), findings
    )


def _node_source(section: Section, timeout: int | None, findings: Findings) -> NodeSource:
    document = _document(section.settings, "E-NODE", section.id or "###", findings)
    return _checked_source(document, section.id, section, timeout, findings)


def _checked_source(
    document: Document,
    node: str,
    section: Section | None,
    timeout: int | None,
    findings: Findings,
) -> NodeSource:
    if timeout is not None:
        data = {**document.data, "timeout": timeout}
        if isinstance(config := data.get("config"), dict):
            data["config"] = {key: config[key] for key in config if key != "timeout"}
        document = Document(document.file, data, document.positions)
    at = (section.line, 1) if section is not None else None
    values = None
    if document.data:
        values = _checked(NodeSettings, document, ("E-NODE", node or "###"), at, findings)
    source = NodeSource(values or NodeSettings(), document, section)
    for one, other in TWINS:
        if source.written(*one) and source.written(*other):
            detail = f"{'.'.join(one)} and {'.'.join(other)} say the same thing; keep one of them"
            findings.error("E-NODE", node or "###", detail, source.at(*other))
    return source


def _document(part: Part | None, code: str, subject: str, findings: Findings) -> Document:
    if part is not None:
        try:
            return parse_text(part.text, findings.file, part.line)
        except ConfigurationError as error:
            if error.hint is None and "{{" in part.text and "expected" not in error.message:
                error.hint = 'a text with {{…}} has to be in double quotes: "{{state.x}}"'
            findings.of(code, subject, error)
    return Document(findings.file, {}, {})


def _checked(
    model: type[_Model],
    document: Document,
    code_and_subject: tuple[str, str],
    at: Position | None,
    findings: Findings,
) -> _Model | None:
    """Return the values of *document*; without those that are wrong, which are told."""
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = problems_of(error, model, document.where)
    code, subject = code_and_subject
    wrong: set[str | int] = set()
    for problem in found:
        path = problem.path
        if not problem.is_missing:
            path = _as_written(path, document)
        wrong.add(path[0] if path else "")
        is_unknown_key = problem.error.message.startswith("unknown key")
        shown = path[:-1] if is_unknown_key else path
        message = f"{dotted(shown)}: {problem.error.message}" if shown else problem.error.message
        own = next((_CODES[key] for key in path if key in _CODES), code)
        findings.error(own, subject, message, document.position(path) or at, problem.error.hint)
    rest = {key: value for key, value in document.data.items() if key not in wrong}
    try:
        return model.model_validate(rest)
    except ValidationError:
        return None


def _as_written(path: KeyPath, document: Document) -> KeyPath:
    """Return *path* without what pydantic adds to say which of several types it tried."""
    here: Any = document.data
    for length, part in enumerate(path):
        is_there = (isinstance(here, dict) and part in here) or (
            isinstance(here, list) and isinstance(part, int) and part < len(here)
        )
        if not is_there:
            return path[:length]
        here = here[part]
    return path
