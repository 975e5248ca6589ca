"""What is wrong with a chart and what to write instead, for each place where one can go wrong.

The scanner knows that a token does not fit; here it is decided what the writer probably
meant. Every function returns the error for the token that the stream stands at, or for the
*start* that it is given.
"""

from __future__ import annotations

from sequencer.workflows.mermaid.scanner import Stream
from sequencer.workflows.mermaid.text import ChartError, Source

_QUOTE = "put labels with brackets in double quotes"
_OPERATORS = "write '-->' with a blank on either side; other lines: -.->, ==>, ---, ~~~"
_WORDS = {
    "END": "end", "GRAPH": "graph", "SUBGRAPH": "subgraph", "STYLE": "style",
    "LINKSTYLE": "linkStyle", "CLASSDEF": "classDef", "CLASS": "class",
    "INTERPOLATE": "interpolate", "LINK_TARGET": "_self", "HREF": "href", "CLICK": "click",
    "CALLBACK": "call",
}  # fmt: skip
_OPENING = frozenset({"[", "(", "{", "((", "(((", "([", "[[", "[(", "[/", "[\\", "(-", "[|"})
_CLOSING = frozenset({"]", ")", "}", ")))", "])", "]]", ")]"})
_FORMS = {
    "STYLE": "style ID fill:#f9f,stroke:#333",
    "LINKSTYLE": "linkStyle 0,1 stroke:#333",
    "CLASSDEF": "classDef NAME fill:#f9f,stroke:#333",
    "CLASS": "class ID,ID NAME",
    "CLICK": 'click ID "https://…" "tooltip" _blank',
}


class Complaints:
    """Makes the errors of one chart."""

    def __init__(self, source: Source, stream: Stream) -> None:
        self._source = source
        self._stream = stream

    def _here(self, message: str, hint: str | None = None) -> ChartError:
        return self._source.refusal(message, self._stream.start_of_text, hint)

    def _shown(self) -> str:
        """Return the present token as a message names it."""
        stream = self._stream
        if stream.kind in {"EOF", "STOP"}:
            return "the end of the chart"
        if stream.kind == "NEWLINE":
            return "the end of the line"
        text = stream.text.strip() or stream.text
        return repr(text if len(text) <= 40 else text[:37] + "…")  # noqa: PLR2004

    def no_header(self) -> ChartError:
        """Return the error for a text that begins with something else."""
        return self._here(
            f"a flowchart begins with 'flowchart' or 'graph', not with {self._shown()}",
            "write 'flowchart TD' in the first line",
        )

    def bad_direction(self) -> ChartError:
        """Return the error for a header whose second word is unknown."""
        start = self._stream.start
        rest = self._source.text[start:]
        words = rest.split(maxsplit=1)
        start += len(rest) - len(rest.lstrip())
        shown = repr(words[0][:40]) if words else "the end of the chart"
        return self._source.refusal(
            f"expected a direction after the header's first word, not {shown}",
            start,
            "directions are TB, TD, BT, LR and RL in upper case; statements go below",
        )

    def after_header(self) -> ChartError:
        """Return the error for a statement in the header's line."""
        if "\n" in self._stream.text and self._stream.kind != "NEWLINE":
            return self.no_statement()
        return self._here(
            f"{self._shown()} stands in the header's line",
            "begin statements on a line of their own, or put ';' right after the direction",
        )

    def no_statement(self) -> ChartError:
        """Return the error for a token with which no statement begins."""
        kind = self._stream.kind
        if kind in {"LINK", "START_LINK"}:
            hint = "write the node first; an id that begins with 'x' or 'o' is no arrow's head"
            return self._here(f"{self._shown()} has no node before it", hint)
        return self._bad_id() or self._here(
            f"no statement begins with {self._shown()}", "expected an id, as in: a[Label] --> b"
        )

    def _bad_id(self) -> ChartError | None:
        kind = self._stream.kind
        if kind in _WORDS:
            word = self._stream.text.strip() if kind not in {"CLICK", "CALLBACK"} else _WORDS[kind]
            return self._here(
                f"{word!r} is a reserved word; no id may be it or begin with it as a whole word",
                f"join it to something with '_': {word.strip('_')}_node",
            )
        if kind in {"STR", "MD_STR"}:
            return self._here("an id can't be in quotes", 'write the text as a label: a["text"]')
        if kind == "LINK_ID":
            return self._source.refusal(
                "'@' ends the id of a line, and no line follows",
                self._stream.start + len(self._stream.text) - 1,
                "put a label with '@' in double quotes; in other ids it can't be",
            )
        return None

    def stray_end(self) -> ChartError:
        """Return the error for an ``end`` that closes nothing."""
        return self._here(
            "'end' closes no subgraph, and it can't be an id", "name the node 'End' or 'end_node'"
        )

    def no_target(self) -> ChartError:
        """Return the error for a line that leads to nothing."""
        stream = self._stream
        if stream.kind in {"BAD", "TAGEND", "LINK", "START_LINK", "LINK_ID"}:
            return self._bad_id() or self._here(
                f"{self._shown()} can't follow a line; it leads to no node", _OPERATORS
            )
        return self._bad_id() or self._here(
            f"the line leads to {self._shown()} instead of a node",
            "write the id of a node behind it; after '|label|' there may be one blank",
        )

    def no_link(self) -> ChartError:
        """Return the error for an edge's id without an edge."""
        return self._here(
            f"after '@' there is {self._shown()} and no line",
            "'@' stands between an edge's id and its line, 'a e1@--> b', or before '{'",
        )

    def after_ampersand(self) -> ChartError:
        """Return the error for what follows '&'."""
        return self._bad_id() or self._here(
            f"after '&' there is {self._shown()} instead of another node",
            "write: a & b --> c, with blanks on both sides of '&'",
        )

    def no_class(self) -> ChartError:
        """Return the error for ':::' without a name."""
        return self._here(f"after ':::' there is {self._shown()} and no name of a class")

    def after_node(self) -> ChartError:
        """Return the error for what can follow neither a node nor a whole statement."""
        stream = self._stream
        if stream.kind == "NODE" and stream.text.startswith("%%"):
            return self._here(
                "a comment can't follow a statement", "put the comment on a line of its own"
            )
        if stream.kind in _OPENING or stream.kind == "TAGEND":
            return self._late_bracket()
        if stream.kind == "BAD":
            return self._bad_id() or self._bad_character()
        if stream.kind == "CLASS_MARK":
            return self._here("a node takes one ':::'", "use 'class ID NAME' for another class")
        if stream.kind == "MINUS" or stream.text.startswith((".", "-")):
            return self._here(f"{self._shown()} is no line", _OPERATORS)
        return self._bad_id() or self._here(
            f"{self._shown()} can't follow a node",
            "put a line between two nodes, or begin a new line",
        )

    def _late_bracket(self) -> ChartError:
        if self._stream.previous == "MINUS":
            return self._here("'->' is no line", _OPERATORS)
        if self._stream.previous == "SPACE":
            hint = "write the bracket right behind the id: a[Label]"
            return self._here(f"a blank stands between an id and {self._shown()}", hint)
        return self._here(f"{self._shown()} can't follow a node's label", _QUOTE)

    def _bad_character(self) -> ChartError:
        text = self._stream.text
        if text == "=":
            return self._here("'=' alone is no line", _OPERATORS)
        if text in "])}":
            return self._here(f"{text!r} closes nothing", _QUOTE)
        return self._here(
            f"{text!r} can't be in an id", 'use it in a label in double quotes: a["…"]'
        )

    def open_label(self, closing: str, start: int) -> ChartError:
        """Return the error for a label that goes on where its end should be."""
        message, hint = _unclosed(closing), _QUOTE
        if closing == "|":
            hint = f"labels between pipes: {_QUOTE}"
        if self._stream.kind in {"STR", "MD_STR"}:
            hint = "quote the whole label; a quote inside of one is written #quot;"
        if self._stream.kind in {"EOF", "STOP", "BAD"} or self._stream.text.isspace():
            return self._source.refusal(message, start, hint)
        where = self._stream.start_of_text
        shown = self._shown()
        return self._source.refusal(f"{message}; {shown} stands in it", where, hint)

    def empty_label(self, closing: str, start: int) -> ChartError:
        """Return the error for a label that does not begin with text."""
        if self._stream.kind in {"EOF", "STOP"}:
            return self._source.refusal(_unclosed(closing), start, _QUOTE)
        if self._stream.kind in _CLOSING or self._stream.kind in {"|", "-)", "/]", "\\]"}:
            hint = "leave it out together with its brackets or pipes, or write a blank as label"
            return self._source.refusal("the label is empty", start, hint)
        return self.open_label(closing, start)

    def bad_property(self) -> ChartError:
        """Return the error for ``[|`` that is not followed by a property."""
        return self._here("'[|' needs a property", "write: a[|name:value|Label]")

    def open_edge(self, operator: str, start: int) -> ChartError:
        """Return the error for an edge's label without the second half of its line."""
        ends = {"-": "-->", "=": "==>", ".": ".->"}
        end = ends["." if "." in operator else operator.strip("xo<")[:1]]
        hint = f"write: a {operator} label {end} b, without a further {end[0] * 2!r} in the label"
        if self._stream.kind in {"EDGE_TEXT", "STR", "MD_STR", "BAD"}:
            return self._here(f"the label after {operator!r} does not end with {end!r} here", hint)
        return self._source.refusal(
            f"{operator!r} begins a line with a label, and {end!r} does not end it", start, hint
        )

    def open_properties(self, start: int) -> ChartError:
        """Return the error for ``@{`` without an end."""
        if self._stream.kind == "BAD":
            return self._here(
                f"{self._stream.text!r} can't stand in '@{{ … }}'", "put it in double quotes"
            )
        return self._source.refusal("'@{' is not closed with '}'", start)

    def bad_properties(self, problem: str, start: int) -> ChartError:
        """Return the error for properties that say nothing, or nothing that exists."""
        return self._source.refusal(
            f"'@{{ … }}': {problem}", start, 'write: a@{ shape: hexagon, label: "Label" }'
        )

    def no_title(self, start: int) -> ChartError:
        """Return the error for ``subgraph`` without a name."""
        if self._stream.kind in {"NEWLINE", "SEMI", "EOF", "STOP"}:
            return self._source.refusal("the subgraph has no name", start, "write: subgraph name")
        return self._here(
            f"{self._shown()} can't begin a subgraph's name", 'write: subgraph name["Title"]'
        )

    def after_subgraph(self) -> ChartError:
        """Return the error for what follows a subgraph's name in its line."""
        return self._here(
            f"{self._shown()} can't stand in a subgraph's line",
            'write titles in double quotes: subgraph name["Title"], and nothing behind them',
        )

    def open_subgraph(self, start: int) -> ChartError:
        """Return the error for a subgraph without ``end``."""
        hint = "write 'end' on a line of its own after its last node"
        return self._source.refusal("the subgraph is not closed with 'end'", start, hint)

    def too_deep(self, depth: int, start: int) -> ChartError:
        """Return the error for subgraphs in subgraphs without measure."""
        return self._source.refusal(f"subgraphs are nested deeper than {depth} levels", start)

    def no_edge(self, number: str, count: int, start: int) -> ChartError:
        """Return the error for a line that ``linkStyle`` counts and that is not there."""
        shown = number if len(number) <= 20 else number[:20] + "…"  # noqa: PLR2004
        there = f"0 to {count - 1}" if count else "none so far"
        return self._source.refusal(f"there is no line number {shown}; there are {there}", start)

    def bad_side_statement(self, statement: str) -> ChartError:
        """Return the error for a statement about looks that is not as it should be."""
        return self._here(
            f"{self._shown()} can't stand here in a {_WORDS[statement]!r} statement",
            f"write: {_FORMS[statement]}",
        )


def _unclosed(closing: str) -> str:
    return f"the label is not closed with '{closing}'"
