"""The files of a project that a command line may name, and those that a program reads by itself.

The search accepts too many words on purpose: a word that names no file costs nothing, and a file
that is not run only costs a question when it changes. A file that a shell only writes
(``>> notes.md``) does not count, because it changes with each step.

Not found: a name that a shell builds while it runs, for example with a pattern or a variable in
the middle of a word.
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
"""At the start of a word, as in ``$PWD/agent.sh``: nearly always the project's folder."""
_WRITTEN = re.compile(
    r"""(?<![-=<>])>{1,2}\|?\s*(?:"[^"$`]*"|'[^']*'|[^\s'"`;|&()<>{}$]+)"""
    r"""|\|\s*tee\s+(?:-a\s+)?[^\s'"`;|&()<>{}$-][^\s'"`;|&()<>{}$]*"""
)
"""A file that a shell only writes, with its operator: ``>> notes.md``, ``| tee notes.md``."""
_IMPORT = re.compile(r"\b(?:import|from)\s+([\w.]+(?:\s*,\s*[\w.]+)*)")
_MODULE = re.compile(r"[\w.]+")
READ_UNNAMED = (
    *("Makefile", "GNUmakefile", "makefile", "justfile", "Rakefile", "Gemfile", "CMakeLists.txt"),
    *("package.json", "pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "noxfile.py"),
    *("conftest.py", "pytest.ini", "Cargo.toml", "build.rs", "go.mod", "pom.xml", "build.gradle"),
    *("build.gradle.kts", "Dockerfile", "compose.yaml", "docker-compose.yml"),
    *(".pre-commit-config.yaml", "tests", "test", "scripts"),
)
"""Files and folders that builds and tests usually read without naming them."""
MAX_DEPTH = 4
"""Maximum nesting of commands inside a command line."""
MAX_WORDS = 4096
"""Maximum number of words of one command line; no person writes a longer one."""


def list_uncompared_files(folder: Path) -> list[str]:
    """Return the entries of `READ_UNNAMED` in *folder*; they are listed but not compared."""
    paths = (folder / name for name in READ_UNNAMED)
    return [f"{path.name}/" if path.is_dir() else path.name for path in paths if path.exists()]


def find_possible_paths(items: Sequence[object]) -> Iterator[str]:
    """Yield each part of a command line that may be the path of a file, without repetitions.

    >>> [word for word in find_possible_paths(["env", "-S", "sh -c '. ./a.sh'"]) if "a.sh" in word]
    ["sh -c '. ./a.sh'", '. ./a.sh', './a.sh']
    """
    yield from dict.fromkeys(islice(_list_words([*map(str, items)], MAX_DEPTH), MAX_WORDS))


def find_module_paths(items: Sequence[object]) -> Iterator[str]:
    """Yield the possible paths of the Python modules in a command line (``-m`` and ``-c``).

    >>> list(find_module_paths(["python3", "-c", "import a.b"]))
    ['a.py', 'a/__init__.py', 'a/__main__.py', 'a/b.py', 'a/b/__init__.py', 'a/b/__main__.py']
    """
    words = [*map(str, items), *find_possible_paths(items)]
    modules: list[str] = []
    for previous_word, word in pairwise(words):
        if previous_word == "-m" and _MODULE.fullmatch(word):
            modules.append(word)
    for text in words:
        for match in _IMPORT.finditer(text):
            modules += re.split(r"\s*,\s*", match[1])
        if text.startswith("-m") and _MODULE.fullmatch(text[2:]):
            modules.append(text[2:])
    for name in dict.fromkeys(modules[:MAX_WORDS]):
        parts = [part for part in name.split(".") if part]
        for length in range(1, len(parts) + 1):
            path = "/".join(parts[:length])
            yield from (f"{path}.py", f"{path}/__init__.py", f"{path}/__main__.py")


def _list_words(items: Sequence[str], depth: int) -> Iterator[str]:
    folder = None
    for previous_item, item in pairwise(["", *items]):
        if previous_item == "cd":
            folder = item
        for word in _spellings(item):
            yield word
            if folder is not None:
                yield f"{folder}/{word}"
        if depth and _BREAKS.search(item):
            yield from _list_words(_split(item), depth - 1)


def _spellings(item: str) -> Iterator[str]:
    """Yield *item*, the value of an option, the parts of a list, and what follows a variable."""
    yield item
    if ":" in item:
        yield from item.split(":")
    if "=" in item:
        # From --option=value, and from NAME=value before a command.
        item = item.partition("=")[2]
        yield item
    remainder = _VARIABLE.sub("", item, count=1) if item.startswith("$") else item
    if remainder != item:
        yield remainder


def _split(text: str) -> list[str]:
    """Return the words of *text* as a shell splits them, and as they are written.

    >>> _split("sh a.sh > a.log")
    ['sh', 'a.sh', 'sh', 'a.sh']
    """
    text = _WRITTEN.sub(" ", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    with suppress(ValueError):  # an unclosed quote; the plain split below still finds the words
        words += lexer
    return [*words, *filter(None, _BREAKS.split(text))]
