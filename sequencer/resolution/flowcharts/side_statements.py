"""What only colour or links: ``style``, ``linkStyle``, ``classDef``, ``class``, ``click``.

They are checked, because Mermaid refuses a whole chart over one of them, and all that is
kept of them is a node that ``style`` names first, and the names of classes.
"""

from __future__ import annotations

from sequencer.resolution.flowcharts.complaints import Complaints
from sequencer.resolution.flowcharts.drawing import Drawing
from sequencer.resolution.flowcharts.stream import ID_KINDS, SEPARATORS, Stream

_STYLE_KINDS = frozenset({"NUM", "NODE", "COLON", "SPACE", "BRKT", "STYLE"})
_WORD_KINDS = ID_KINDS - {"DEFAULT"}


class SideStatements:
    """Reads them from the same stream of tokens."""

    def __init__(self, stream: Stream, drawing: Drawing, complaints: Complaints) -> None:
        self._stream = stream
        self._drawing = drawing
        self._complaints = complaints

    def read(self, kind: str) -> bool:
        """Read the statement that begins with a token of *kind*; False: none does."""
        reader = {
            "STYLE": self._style,
            "LINKSTYLE": self._link_style,
            "CLASSDEF": self._class_def,
            "CLASS": self._class,
            "CLICK": self._click,
        }.get(kind)
        if reader is None:
            return False
        self._stream.advance()
        reader()
        if self._stream.kind not in SEPARATORS:
            raise self._complaints.bad_side_statement(kind)
        self._stream.advance()
        return True

    def _space(self, statement: str) -> None:
        if self._stream.kind != "SPACE":
            raise self._complaints.bad_side_statement(statement)
        self._stream.advance()

    def _id(self, statement: str) -> str:
        if self._stream.kind not in ID_KINDS:
            raise self._complaints.bad_side_statement(statement)
        return self._stream.take_id()

    def _styles(self, statement: str) -> None:
        stream = self._stream
        while True:
            if stream.kind not in _STYLE_KINDS:
                raise self._complaints.bad_side_statement(statement)
            while stream.kind in _STYLE_KINDS:
                stream.advance()
            if stream.kind != "COMMA":
                return
            stream.advance()

    def _style(self) -> None:
        self._space("STYLE")
        start = self._stream.start
        name = self._id("STYLE")
        self._space("STYLE")
        self._styles("STYLE")
        self._drawing.add_node(name, start)

    def _class_def(self) -> None:
        self._space("CLASSDEF")
        names = self._id("CLASSDEF")
        self._space("CLASSDEF")
        self._styles("CLASSDEF")
        self._drawing.classes.update(names.split(","))

    def _class(self) -> None:
        self._space("CLASS")
        self._id("CLASS")
        self._space("CLASS")
        self._drawing.classes.add(self._id("CLASS"))

    def _link_style(self) -> None:
        stream = self._stream
        self._space("LINKSTYLE")
        numbers: list[tuple[str, int]] = []
        if stream.kind == "DEFAULT":
            stream.advance()
        else:
            self._number(numbers)
            while stream.kind == "COMMA":
                stream.advance()
                self._number(numbers)
        self._space("LINKSTYLE")
        if stream.kind == "INTERPOLATE":
            stream.advance()
            self._space("LINKSTYLE")
            if stream.kind not in _WORD_KINDS:
                raise self._complaints.bad_side_statement("LINKSTYLE")
            while stream.kind in _WORD_KINDS:
                stream.advance()
            if stream.kind == "SPACE":
                stream.advance()
                self._styles("LINKSTYLE")
        else:
            self._styles("LINKSTYLE")
        self._ensure_edges(numbers)

    def _number(self, numbers: list[tuple[str, int]]) -> None:
        if self._stream.kind != "NUM":
            raise self._complaints.bad_side_statement("LINKSTYLE")
        numbers.append((self._stream.text, self._stream.start))
        self._stream.advance()

    def _ensure_edges(self, numbers: list[tuple[str, int]]) -> None:
        count = self._drawing.edge_count
        for text, start in numbers:
            is_index = text == "0" or not text.startswith("0")
            if not is_index or len(text) > len(str(count)) or int(text) >= count:
                raise self._complaints.no_edge(text, count, start)

    def _click(self) -> None:
        """``click`` and an id, then a callback, ``href`` or text, and a tooltip."""
        stream = self._stream
        if stream.kind == "CALLBACK":
            stream.advance()
            if stream.kind == "ARGUMENTS":
                stream.advance()
            self._tooltip()
        elif stream.kind in {"HREF", "STR"}:
            if stream.kind == "HREF":
                stream.advance()
            if stream.kind != "STR":
                raise self._complaints.bad_side_statement("CLICK")
            stream.advance()
            self._tooltip(has_target=True)
        elif stream.kind in _WORD_KINDS:
            while stream.kind in _WORD_KINDS:
                stream.advance()
            self._tooltip()
        else:
            raise self._complaints.bad_side_statement("CLICK")

    def _tooltip(self, *, has_target: bool = False) -> None:
        """Read what may follow: a text in quotes, and where the link opens."""
        stream = self._stream
        for kind in ("STR", "LINK_TARGET") if has_target else ("STR",):
            if stream.kind != "SPACE":
                return
            stream.advance()
            if stream.kind == "STR" and kind == "STR":
                stream.advance()
            elif stream.kind == "LINK_TARGET" and has_target:
                stream.advance()
                return
            else:
                raise self._complaints.bad_side_statement("CLICK")
