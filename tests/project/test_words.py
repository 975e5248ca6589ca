"""What users read is plain American English: no words of a word-for-word translation.

Read are the documents, the messages and help texts in the code, and the docstrings of the library's
public names. `not_yet_rewritten.txt` lists the files that still have such words. The list only
shrinks: a file on it that has none left fails, and so does a file that is not on it and has one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sequencer
from tests.project.documents import ROOT, pages, prose, shown

LIST = Path(__file__).with_name("not_yet_rewritten.txt")
NOT_YET = LIST.read_text().split()

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


def docstrings(tree: ast.Module) -> tuple[set[int], set[int]]:
    """Return the ids of the docstrings in *tree*: all of them, and those of public names."""
    every, public = set(), set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                every.add(id(child.value))
                if getattr(node, "name", None) in sequencer.__all__:
                    public.add(id(child.value))
    return every, public


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what users read of *path*, with its line."""
    if path.suffix == ".html":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    if path.suffix == ".md":
        yield from prose(path)
        return
    tree = ast.parse(path.read_text())
    every, public = docstrings(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        # A word alone is a key or a name; a phrase is for a person.
        if " " in node.value.strip() and (id(node) not in every or id(node) in public):
            for line in node.value.splitlines():
                yield node.lineno, line


def problems(path: Path) -> list[str]:
    """Return the lines of *path* that read like a translation."""
    return [f"{shown(path)}:{line}: {word}" for line, text in texts(path) for word in found(text)]


def test_what_users_read_is_no_translation() -> None:
    files = [path for path in read() if shown(path) not in NOT_YET]
    assert [problem for path in files for problem in problems(path)] == []


def test_the_list_of_files_to_rewrite_only_shrinks() -> None:
    clean = [name for name in NOT_YET if not (ROOT / name).exists() or not problems(ROOT / name)]
    assert clean == [], f"remove these lines from {shown(LIST)}"


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
    ],
)
def test_a_translation_is_found(text: str) -> None:
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
