"""Errors of a chart that guess what the author meant, and say what to write instead.

The scanner knows only that a token does not fit. Every method returns the error for the
scanner's current token, or for the position *start*.
"""

from __future__ import annotations

from sequencer.workflows.mermaid.scanner import Scanner
from sequencer.workflows.mermaid.text import ChartError, ChartText

_MAX_TOKEN_CHARS = 40
"""Maximum number of characters of a token in a message."""
_QUOTE_HINT = "put labels with brackets in double quotes"
_EDGE_HINT = "write '-->' with a space on each side; other edges: -.->, ==>, ---, ~~~"
_RESERVED_WORDS = {
    "END": "end", "GRAPH": "graph", "SUBGRAPH": "subgraph", "STYLE": "style",
    "LINKSTYLE": "linkStyle", "CLASSDEF": "classDef", "CLASS": "class",
    "INTERPOLATE": "interpolate", "LINK_TARGET": "_self", "HREF": "href", "CLICK": "click",
    "CALLBACK": "call",
}  # fmt: skip
_OPENING_KINDS = frozenset({"[", "(", "{", "((", "(((", "([", "[[", "[(", "[/", "[\\", "(-", "[|"})
_CLOSING_KINDS = frozenset({"]", ")", "}", ")))", "])", "]]", ")]", "|", "-)", "/]", "\\]"})
_END_KINDS = frozenset({"EOF", "STOP"})
_STATEMENT_EXAMPLES = {
    "STYLE": "style ID fill:#f9f,stroke:#333",
    "LINKSTYLE": "linkStyle 0,1 stroke:#333",
    "CLASSDEF": "classDef NAME fill:#f9f,stroke:#333",
    "CLASS": "class ID,ID NAME",
    "CLICK": 'click ID "https://…" "tooltip" _blank',
}


class ChartErrors:
    """Creates the errors of one chart."""

    def __init__(self, source: ChartText, tokens: Scanner) -> None:
        self._source = source
        self._tokens = tokens
        self.at = source.error_at

    def error_here(self, message: str, hint: str | None = None) -> ChartError:
        """Return the error with *message* for the current token."""
        return self.at(message, self._tokens.start_of_text, hint)

    @property
    def token(self) -> str:
        """Return the current token as messages name it."""
        if self._tokens.kind in _END_KINDS:
            return "the end of the chart"
        if self._tokens.kind == "NEWLINE":
            return "the end of the line"
        text = self._tokens.text.strip() or self._tokens.text
        return repr(text if len(text) <= _MAX_TOKEN_CHARS else text[: _MAX_TOKEN_CHARS - 3] + "…")

    def bad_direction(self) -> ChartError:
        """Return the error for a header whose second word is unknown."""
        statement = self._source.text[self._tokens.start :]
        words = statement.split(maxsplit=1)
        return self.at(
            "expected a direction after the header's first word, not "
            + (repr(words[0][:_MAX_TOKEN_CHARS]) if words else "the end of the chart"),
            self._tokens.start + len(statement) - len(statement.lstrip()),
            "directions are TB, TD, BT, LR and RL in uppercase; put statements below",
        )

    def text_after_header(self) -> ChartError:
        """Return the error for a statement in the header's line."""
        if "\n" in self._tokens.text and self._tokens.kind != "NEWLINE":
            return self.bad_statement()
        hint = "start statements on their own line, or put ';' right after the direction"
        return self.error_here(f"{self.token} is in the header's line", hint)

    def bad_statement(self) -> ChartError:
        """Return the error for a token that starts no statement."""
        if self._tokens.kind in {"LINK", "START_LINK"}:
            hint = "write the node first; an id that starts with 'x' or 'o' is not an arrowhead"
            return self.error_here(f"{self.token} has no node before it", hint)
        hint = "expected an id, as in: a[Label] --> b"
        return self.bad_id(f"no statement starts with {self.token}", hint)

    def bad_id(self, message: str, hint: str) -> ChartError:
        """Return the error for a token that can't be an id; *message* is the default text."""
        kind, text = self._tokens.kind, self._tokens.text
        if kind in _RESERVED_WORDS:
            word = text.strip() if kind not in {"CLICK", "CALLBACK"} else _RESERVED_WORDS[kind]
            message = "is a reserved word; an id can't be this word or start with it"
            hint = f"join it to something with '_': {word.strip('_')}_node"
            return self.error_here(f"{word!r} {message}", hint)
        if kind in {"STR", "MD_STR"}:
            return self.error_here(
                "an id can't be in quotes", 'write the text as a label: a["text"]'
            )
        if kind == "LINK_ID":
            hint = "put a label with '@' in double quotes; an id can't have it"
            start = self._tokens.start + len(text) - 1
            return self.at("'@' ends the id of an edge, but no edge follows", start, hint)
        return self.error_here(message, hint)

    def missing_target(self) -> ChartError:
        """Return the error for an edge without a node after it."""
        if self._tokens.kind in {"BAD", "TAGEND", "LINK", "START_LINK", "LINK_ID"}:
            message = f"{self.token} can't follow an edge; the edge leads to no node"
            return self.bad_id(message, _EDGE_HINT)
        hint = "write the id of a node after it; '|label|' may have one space after it"
        return self.bad_id(f"the edge leads to {self.token} instead of a node", hint)

    def bad_token_after_node(self) -> ChartError:
        """Return the error for a token that can follow neither a node nor a statement."""
        kind, text = self._tokens.kind, self._tokens.text
        if kind == "NODE" and text.startswith("%%"):
            hint = "put the comment on a separate line"
            return self.error_here("a comment can't follow a statement", hint)
        if kind in _OPENING_KINDS or kind in {"TAGEND", "BAD"}:
            return self._bad_character() if kind == "BAD" else self._late_bracket()
        if kind == "CLASS_MARK":
            return self.error_here(
                "a node can have only one ':::'", "use 'class ID NAME' for another class"
            )
        if kind == "MINUS" or text.startswith((".", "-")):
            return self.error_here(f"{self.token} is not an edge", _EDGE_HINT)
        hint = "put an edge between two nodes, or start a new line"
        return self.bad_id(f"{self.token} can't follow a node", hint)

    def _bad_character(self) -> ChartError:
        text = self._tokens.text
        if text == "=":
            return self.error_here("'=' alone is not an edge", _EDGE_HINT)
        if text in "])}":
            return self.error_here(f"{text!r} closes nothing", _QUOTE_HINT)
        hint = 'use it in a label in double quotes: a["…"]'
        return self.error_here(f"{text!r} can't be in an id", hint)

    def _late_bracket(self) -> ChartError:
        if self._tokens.previous == "MINUS":
            return self.error_here("'->' is not an edge", _EDGE_HINT)
        if self._tokens.previous == "SPACE":
            hint = "write the bracket right after the id: a[Label]"
            return self.error_here(f"there is a space between an id and {self.token}", hint)
        return self.error_here(f"{self.token} can't follow a node's label", _QUOTE_HINT)

    def unclosed_label(self, closing: str, start: int) -> ChartError:
        """Return the error for a label that continues where it should end."""
        message, kind = f"the label is not closed with '{closing}'", self._tokens.kind
        hint = f"labels between pipes: {_QUOTE_HINT}" if closing == "|" else _QUOTE_HINT
        if kind in {"STR", "MD_STR"}:
            hint = "quote the whole label; write a quote inside it as #quot;"
        if kind in _END_KINDS or kind == "BAD" or self._tokens.text.isspace():
            return self.at(message, start, hint)
        return self.error_here(f"{message}; {self.token} is in it", hint)

    def empty_label(self, closing: str, start: int) -> ChartError:
        """Return the error for a label that does not start with text."""
        if self._tokens.kind in _END_KINDS:
            return self.at(f"the label is not closed with '{closing}'", start, _QUOTE_HINT)
        if self._tokens.kind in _CLOSING_KINDS:
            hint = "leave it out together with its brackets or pipes, or use a space as the label"
            return self.at("the label is empty", start, hint)
        return self.unclosed_label(closing, start)

    def unclosed_edge(self, operator: str, start: int) -> ChartError:
        """Return the error for an edge's label without the second half of its line."""
        ends = {"-": "-->", "=": "==>", ".": ".->"}
        end = ends["." if "." in operator else operator.strip("xo<")[:1]]
        hint = f"write: a {operator} label {end} b, without another {end[0] * 2!r} in the label"
        if self._tokens.kind in {"EDGE_TEXT", "STR", "MD_STR", "BAD"}:
            return self.error_here(
                f"the label after {operator!r} does not end with {end!r} here", hint
            )
        message = f"{operator!r} starts an edge with a label, and {end!r} does not end it"
        return self.at(message, start, hint)

    def unclosed_properties(self, start: int) -> ChartError:
        """Return the error for ``@{`` without an end."""
        if self._tokens.kind != "BAD":
            return self.at("'@{' is not closed with '}'", start)
        message = f"{self._tokens.text!r} is not allowed in '@{{ … }}'"
        return self.error_here(message, "put it in double quotes")

    def missing_title(self, start: int) -> ChartError:
        """Return the error for ``subgraph`` without a name."""
        if self._tokens.kind in {"NEWLINE", "SEMI", *_END_KINDS}:
            return self.at("the subgraph has no name", start, "write: subgraph name")
        hint = 'write: subgraph name["Title"]'
        return self.error_here(f"{self.token} can't start a subgraph's name", hint)

    def bad_side_statement(self, statement: str) -> ChartError:
        """Return the error for an invalid style statement."""
        message = f"{self.token} is not allowed here in a {_RESERVED_WORDS[statement]!r} statement"
        return self.error_here(message, f"write: {_STATEMENT_EXAMPLES[statement]}")
