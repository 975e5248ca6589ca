"""Which files of a project a command line may name, and which a program reads by itself.

Words are taken generously: one that names no file costs nothing, and one that names a file
that is not run costs a question only when that file changes. Where a shell only writes a file
(``>> notes.md``), that place does not count: such a file changes with each step.

Not promised: a name that a shell puts together while it runs, for example with a pattern or a
variable in the middle of a word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path

_BREAKS = re.compile(r"[\s'\"`;|&()<>{},]+")
_VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+|\([^()]*\))/+")
"""At the beginning of a word, as in ``$PWD/agent.sh``: nearly always the project's folder."""
_WRITTEN = re.compile(
    r"""(?<![-=<>])>{1,2}\|?\s*(?:"[^"$`]*"|'[^']*'|[^\s'"`;|&()<>{}$]+)"""
    r"""|\|\s*tee\s+(?:-a\s+)?[^\s'"`;|&()<>{}$-][^\s'"`;|&()<>{}$]*"""
)
"""A file that a shell only writes, with what makes it one: ``>> notes.md``, ``| tee notes.md``."""
_IMPORT = re.compile(r"\b(?:import|from)\s+([\w.]+(?:\s*,\s*[\w.]+)*)")
_MODULE = re.compile(r"[\w.]+")
READ_UNNAMED = (
    *("Makefile", "GNUmakefile", "makefile", "justfile", "Rakefile", "Gemfile", "CMakeLists.txt"),
    *("package.json", "pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "noxfile.py"),
    *("conftest.py", "pytest.ini", "Cargo.toml", "build.rs", "go.mod", "pom.xml", "build.gradle"),
    *("build.gradle.kts", "Dockerfile", "compose.yaml", "docker-compose.yml"),
    *(".pre-commit-config.yaml", "tests", "test", "scripts"),
)
"""What builds and tests usually read of a project, whatever their command line says."""
MAX_DEPTH = 4
"""A command within a command within a command line."""
MAX_WORDS = 4096
"""Of one command line; more are no command that a person has written."""


def read_unnamed(folder: Path) -> list[str]:
    """Return the entries of `READ_UNNAMED` that *folder* has; they are listed and not compared."""
    paths = (folder / name for name in READ_UNNAMED)
    return [f"{path.name}/" if path.is_dir() else path.name for path in paths if path.exists()]


def named(items: Sequence[object]) -> Iterator[str]:
    """Yield what of a command line may be the path of a file, each once.

    >>> [word for word in named(["env", "-S", "sh -c '. ./a.sh'"]) if "a.sh" in word]
    ["sh -c '. ./a.sh'", '. ./a.sh', './a.sh']
    """
    yield from dict.fromkeys(islice(_words([*map(str, items)], MAX_DEPTH), MAX_WORDS))


def modules(items: Sequence[object]) -> Iterator[str]:
    """Yield the paths that Python modules of a command line would have, ``-m`` and ``-c`` alike.

    >>> list(modules(["python3", "-c", "import a.b"]))
    ['a.py', 'a/__init__.py', 'a/__main__.py', 'a/b.py', 'a/b/__init__.py', 'a/b/__main__.py']
    """
    words = [*map(str, items), *named(items)]
    found: list[str] = []
    for before, word in pairwise(words):
        if before == "-m" and _MODULE.fullmatch(word):
            found.append(word)
    for text in words:
        for match in _IMPORT.finditer(text):
            found += re.split(r"\s*,\s*", match[1])
        if text.startswith("-m") and _MODULE.fullmatch(text[2:]):
            found.append(text[2:])
    for name in dict.fromkeys(found[:MAX_WORDS]):
        parts = [part for part in name.split(".") if part]
        for length in range(1, len(parts) + 1):
            path = "/".join(parts[:length])
            yield from (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py")


def _words(items: Sequence[str], depth: int) -> Iterator[str]:
    folder = None
    for before, item in pairwise(["", *items]):
        if before == "cd":
            folder = item
        for word in _spellings(item):
            yield word
            if folder is not None:
                yield f"{folder}/{word}"
        if depth and _BREAKS.search(item):
            yield from _words(_split(item), depth - 1)


def _spellings(item: str) -> Iterator[str]:
    """Yield *item*, the value of an option, the parts of a list, and what follows a variable."""
    yield item
    if ":" in item:
        yield from item.split(":")
    if "=" in item:
        # Of --option=value, and of NAME=value before a command.
        item = item.partition("=")[2]
        yield item
    without = _VARIABLE.sub("", item, count=1) if item.startswith("$") else item
    if without != item:
        yield without


def _split(text: str) -> list[str]:
    """Return the words of *text* as a shell has them, and as they stand there.

    >>> _split("sh a.sh > a.log")
    ['sh', 'a.sh', 'sh', 'a.sh']
    """
    text = _WRITTEN.sub(" ", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    with suppress(ValueError):  # a quote without an end; what stands there counts all the same
        words += lexer
    return [*words, *filter(None, _BREAKS.split(text))]
