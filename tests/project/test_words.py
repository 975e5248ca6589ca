"""Texts and names are plain American English: no words of a word-for-word translation.

Read are the documents, and in the code messages, help texts, docstrings, comments and names.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.project.documents import ROOT, pages, prose, shown
from tests.structure import nodes_of, parse, tree_of

RECORDED = ("Mending what ",)
"""Texts of nodes that runs of today have in their files; another text is another node."""

WORDS = {
    "again, or from the start": r"\banew\b",
    "continue": r"\b(?:go|goes|went|gone) on\b(?! a\b)",
    "start, started": r"\b(?:begin|begins|began|begun)\b",
    "fix, repair": r"\bmend(?:s|ed|ing)?\b",
    "forever": r"\bfor ever\b",
    "name the noun": r"\bthat of\b",
    "has been waiting since": r"\b(?:waits|runs|works|sleeps|stands) since\b",
    "put the verb after its subject": r"\bwhich there (?:is|are)\b",
    "2nd, 3rd": r"\bthe \d+\. \w",
    "whoever does X does Y": r"(?:^|\. |\bFor )(?-i:[Ww]ho) [a-z]+s\b(?![^.]*\?)",
    "no comma before the verb": r"(?<!, )\bwho(?:ever)? \w+s\b[^.,;:|()]*, \w+s\b(?! and\b)",
    "after": r"(?<!fall )(?<!falls )(?<!fell )(?<!left )(?<!leave )(?<!leaves )(?<!commits )"
    r"(?<!nothing )(?<!minute )(?<!second )(?<!seconds )(?<!are )(?<!is )(?<!s none )"
    r"(?<!SQL )(?<!the same )"
    r"\bbehind\b(?! (?:a|the|your|it|an|that) (?:\w+ )?(?:proxy|server|reverse|login))",
    "no longer": r"\bno more(?=[.,;:)|]|$)",
    "is in": r"\b(?:lies|lie|lay) (?:in|on|at|below|beside|there|under|where)\b",
    "is at": r"\b(?:stand|stands|stood) (?:in (?!for|the way)|at|on|there|beside|below|above"
    r"|between)",
    "start with the subject": r"(?:^|[.:;] )(?-i:Of) (?:a|an|the|what|those|all|one|two|these|this"
    r"|each)\b",
    "is not one": r"(?<!there )\b(?:is|are|was|were) (?-i:none)\b(?! of)",
    "watch": r"\blook(?:s|ing)? on\b",
    "no one, someone, anyone": r"\b(?:nobody|somebody|anybody)\b",
    "the process that, the person who": r"\bwhoever\b",
    "plain words": r"\b(?:lest|whilst|amongst|thereby|therein|thereof|whereof|heed|hitherto"
    r"|nought)\b",
    "American spelling": r"\b(?:behaviours?|colours?|favours?|honours?|neighbours?|catalogue"
    r"|licence|(?:organ|recogn|serial|normal|initial|summar|custom)is(?:e|es|ed|ing))\b",
}
"""What to write instead, and what is not to be written."""
_FOUND = re.compile(
    "|".join(f"(?P<w{n}>{pattern})" for n, pattern in enumerate(WORDS.values())), re.IGNORECASE
)
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|\{\{.*?\}\}|\{%.*?%\}")


_DOUBLE = re.compile(r"``[^`]*``|\{\{.*?\}\}")
_EXAMPLE = re.compile(r"^ *>>> .*?(?=\n *\n|\Z)", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"#\s*(?:noqa|type:|fmt:|pragma)")


def found(text: str) -> list[str]:
    """Return the words of a translation in a line of prose, each with what to write instead."""
    advice = list(WORDS)
    return [
        f"'{match[0]}': {advice[int((match.lastgroup or 'w0')[1:])]}"
        for match in _FOUND.finditer(_CODE.sub("X", text))
    ]


def read() -> list[Path]:
    """Return every file with text for users."""
    package = ROOT / "sequencer"
    inside = [path for kind in ("py", "html") for path in package.rglob(f"*.{kind}")]
    examples = [path for path in (ROOT / "examples").rglob("*.md") if "prompts" not in path.parts]
    return sorted({*pages(), *examples, *inside})


def code_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield each string and each comment of Python *source*, with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            yield token.start[0], token.string.lstrip("#: ")
    for node in nodes_of(parse(source)):
        # A word alone is a key or a name; a phrase is for a person.
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = _EXAMPLE.sub(lambda match: "\n" * match[0].count("\n"), node.value)
            lines = text.splitlines() if " " in text.strip() else []
            for number, line in enumerate(lines, node.lineno):
                yield number, _DOUBLE.sub("X", line)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what people read of *path*, with its line."""
    if path.suffix == ".html":
        yield from enumerate(path.read_text().splitlines(), 1)
    elif path.suffix == ".md":
        yield from prose(path)
    else:
        yield from code_texts(path.read_text())


def problems(path: Path) -> list[str]:
    """Return the lines of *path* that read like a translation."""
    return [
        f"{shown(path)}:{line}: {word}"
        for line, text in texts(path)
        if not text.startswith(RECORDED)
        for word in found(text)
    ]


def test_text_for_users_is_not_a_literal_translation() -> None:
    assert [problem for path in read() for problem in problems(path)] == []


NAME_WORDS = {
    "InvocationBudget, budget": r"stints?",
    "RetryPolicy, retry_for_s, a limit": r"patien(?:ce|t)",
    "work-tree lock": r"tenanc(?:y|ies)",
    "WaitQueue, queue": r"turnstiles?",
    "support": r"hono(?:u)?r(?:s|ed|ing)?",
    "started": r"begun",
    "again, new": r"anew",
    "fix, repair": r"mend(?:s|ed|ing)?",
    "no one, someone, a noun": r"nobody|somebody|anybody|whoever",
    "evidence, progress": r"witness(?:es|ed)?",
    "expired": r"laps(?:e|es|ed|ing)",
    "readiness": r"standing",
    "message, notice, report": r"told|telling",
    "work order": r"permits?",
}
"""What to call it instead, and the parts of names that are not used."""
_PARTS = re.compile("|".join(f"(?P<n{n}>{word})" for n, word in enumerate(NAME_WORDS.values())))
ON_DISK = {
    "begun_at": "a key of state.json: when the run of a graph has started",
    "told": "a key of state.json and of markings: messages that wait, written by `tell`",
    "TOLD": "the event `told` of the journal",
}
"""Names that files have, so they stay."""
TEMPORAL = "sequencer/plugins/temporal/"
"""Its data on the server has the key `permits`."""


def parts(name: str) -> list[str]:
    """Return the words of the identifier *name*, in lower case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace(".", "_").split("_")


@cache
def names(source: str) -> tuple[tuple[int, str], ...]:
    """Return each name that *source* defines or uses, with its line."""
    return tuple(names_of(nodes_of(parse(source))))


def names_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield each name in *nodes*, with its line."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg() | ast.keyword(arg=str()):
                yield node.lineno, node.arg or ""
            case ast.Attribute():
                yield node.lineno, node.attr
            case ast.Name():
                yield node.lineno, node.id
            case ast.alias():
                yield node.lineno, node.asname or node.name
            case ast.MatchAs() | ast.MatchStar() | ast.ExceptHandler():
                yield node.lineno, node.name or ""


def odd_names(path: Path, source: str) -> list[str]:
    """Return the names of *source*, the file *path*, that the glossary does not use."""
    advice = list(NAME_WORDS)
    found_names = []
    for line, name in names(source):
        matches = [] if name in ON_DISK else filter(None, map(_PARTS.fullmatch, parts(name)))
        for match in matches:
            if match[0].startswith("permit") and shown(path).startswith(TEMPORAL):
                continue
            what = advice[int((match.lastgroup or "n0")[1:])]
            found_names.append(f"{shown(path)}:{line}: '{name}': {what}")
    return found_names


def test_names_use_the_words_of_the_glossary() -> None:
    package = sorted((ROOT / "sequencer").rglob("*.py"))
    assert [name for path in package for name in odd_names(path, path.read_text())] == []


def test_test_functions_use_the_words_of_the_glossary() -> None:
    folder = ROOT / "tests"
    every = [
        (path, name)
        for path in sorted(folder.rglob("test_*.py"))
        for name in list_test_functions(path)
    ]
    words = [(path, name, part) for path, name in every for part in parts(name)]
    odd = [f"{shown(path)}: {name}" for path, name, part in words if _PARTS.fullmatch(part)]
    assert odd == []


def list_test_functions(path: Path) -> list[str]:
    """Return the names of the test functions in *path*."""
    functions = (node for node in nodes_of(tree_of(path)) if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if node.name.startswith("test_")]


def test_exempted_names_exist_in_the_package() -> None:
    sources = (path.read_text() for path in (ROOT / "sequencer").rglob("*.py"))
    assert ON_DISK.keys() <= {name for source in sources for _, name in names(source)}


@pytest.mark.parametrize(
    "source",
    [
        "class StintOfOne: ...",
        "def mend_file(path): ...",
        "def run(*, anew): ...",
        "run(has_begun=True)",
        "self.told_at = 1",
        "for nobody in (): ...",
        "import witnesses",
        "PATIENCE_S = 1",
    ],
)
def test_an_old_name_is_found(source: str) -> None:
    assert odd_names(ROOT / "sequencer" / "x.py", source)


def test_the_old_name_is_allowed_on_the_server_only() -> None:
    assert odd_names(ROOT / "sequencer" / "x.py", "permits = 1")
    assert odd_names(ROOT / TEMPORAL / "x.py", "permits = 1") == []


@pytest.mark.parametrize(
    "source",
    ["# Nobody is asked.", '"""Return what nobody has."""', '#: It goes on\nx = "is begun anew"'],
)
def test_comments_and_docstrings_are_read(source: str) -> None:
    assert any(found(text) for _, text in code_texts(source))


def test_names_and_examples_in_code_are_not_read() -> None:
    source = '"""See ``begun``.\n\n    >>> anew = 1  # nobody\n\nText."""\nx = 1  # noqa: nobody'
    assert not any(found(text) for _, text in code_texts(source))


@pytest.mark.parametrize(
    "text",
    [
        "The run goes on where it ended.",
        "It is begun anew.",
        "Mend the cause.",
        "A gate waits for ever.",
        "The file, and that of the other run.",
        "It waits since 9:00.",
        "runs of which there are two",
        "the 2. time",
        "Who reads it, knows.",
        "the one who holds the claim, runs",
        "A stop behind a step.",
        "It is there no more.",
        "a token that is none",
        "Of a flow or a team what may start now.",
        "What stands in the file counts.",
        "Nobody is asked.",
        "The step goes to whoever asks first.",
    ],
)
def test_a_literal_translation_is_found(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize(
    "text",
    [
        "Run `git commit -m 'begun anew'` again.",
        "A server behind a proxy falls behind.",
        "People who use it like it.",
        "Who may answer?",
        "It takes no more than a second.",
    ],
)
def test_plain_english_passes(text: str) -> None:
    assert found(text) == []
