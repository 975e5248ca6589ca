from __future__ import annotations

from time import process_time

import pytest

from sequencer.plugins.teams.scoring import find_phrases, find_signals, score


def words_in(text: str, *phrases: str) -> list[str]:
    return find_phrases(find_signals("", text).tokens, phrases)


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("refactor", "REFACTOR it"),
        ("refactor", "After refactoring, it"),
        ("refactor", "it was refactored."),
        ("refactor", "refactor(auth): a commit's title"),
        ("refactor", "(refactors)"),
        ("refactor", "**Refactor**"),
        ("refactor", "re-write/refactor"),
        ("migrate", "a migration of"),
        ("migrate", "migrating"),
        ("overhaul", "overhauled—all of it"),
        ("split", "splitting it"),
        ("retry", "three retries"),
        ("deploy", "it deploys"),
        ("fix", "fixes"),
        ("end-to-end", "tests, end to end"),
        ("end-to-end", "END-TO-END"),
        ("full-stack", "a full stack change"),
        ("full-stack", "fullstack"),
        ("frontend and backend", "the front-end and back end"),
        ("multiple files", "multiple\nfiles"),
        ("breaking change", "breaking changes"),
        ("can't reproduce", "I can\N{RIGHT SINGLE QUOTATION MARK}t reproduce it"),
        ("node.js", "with Node.js"),
        ("straße", "STRASSE"),
        ("refactor", "`code` refactor `code`"),
        ("refactor", "an open ` and refactor"),
    ],
)
def test_a_keyword_is_found(keyword: str, text: str) -> None:
    assert words_in(text, keyword) == [keyword]


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("port", "support, portal, import"),
        ("refactor", "refactory prefactor"),
        ("refactor", "refactor_engine and refactor.engine and refactor()"),
        ("refactor", "see https://example.org/refactor/it and www.refactor.example"),
        ("refactor", "[a link](https://example.org/refactor)"),
        ("refactor", "mailto:refactor@example.org and refactor@example.org"),
        ("refactor", "src/refactor/main.py, ./refactor.py and C:\\refactor\\x.cs"),
        ("refactor", "the name `refactor` of a function"),
        ("refactor", "```python\nrefactor it\n```"),
        ("refactor", "~~~\n```\nrefactor it\n~~~"),
        ("refactor", "````\n```\nrefactor it\n````"),
        ("refactor", "```\nnever closed\n\nrefactor it"),
        ("refactor", "<!-- do you refactor? -->"),
        ("multiple files", "there are multiple. Files are"),
        ("multiple files", "there are multiple\n\nfiles"),
        ("multiple files", "- multiple\n- files"),
        ("multiple files", "# multiple\nfiles"),
        ("multiple files", "multiple `x` files"),
        ("multiple files", "multiple"),
        ("migrate", "migrant"),
    ],
)
def test_text_that_only_looks_like_a_keyword_is_ignored(keyword: str, text: str) -> None:
    assert words_in(text, keyword) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("- a\n- b\n* c\n+ d\n1. e\n2) f", 6),
        ("- [ ] a\n- [x] done\n- [X] done\n  - [ ] a box within", 2),
        ("- a\n  - part of a\n    - part of that", 1),
        ("-a\n*b*\n---\n1.5 times\n- ", 0),
        ("## Environment\n- Linux\n- Python\n## To do\n- a", 1),
        ("Steps to reproduce:\n1. a\n2. b\n\n**Tasks**\n- c\n- d", 2),
        ("Related:\n- #1", 0),
        ("System tests:\n- a\n- b", 2),
        ("```\n- a\n- b\n```", 0),
    ],
)
def test_sub_tasks_are_counted(text: str, count: int) -> None:
    assert find_signals("", text).subtasks == count


@pytest.mark.parametrize("title", ["Steps to reproduce:", "### Reproduction", "**How to trigger**"])
def test_steps_to_reproduce_are_counted(title: str) -> None:
    found = find_signals("", f"{title}\n\n1. open it\n2. close it\n\n## Then\n- a")
    assert (found.reproduction_steps, found.subtasks) == (2, 1)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("see src/a.py, `lib/b.ts:12:3` and (README.md).", {"src/a.py", "lib/b.ts", "README.md"}),
        ("./a.py a.py a.py:7", {"a.py"}),
        ("C:\\app\\main.cs", {"C:/app/main.cs"}),
        ("app\\main.cs", {"app/main.cs"}),
        ("the folder src/core and docs/", {"src/core", "docs/"}),
        ("and/or, read/write, 2026/01/02, 1.5, e.g. v1.2.3", set()),
        ("Node.js and vue.js", set()),
        ("https://example.org/a.py", set()),
        ("```\na.py\n```", set()),
        (".env .py", set()),
        ("x" * 400 + ".py", set()),
    ],
)
def test_paths_are_found(text: str, paths: set[str]) -> None:
    assert find_signals("", text).paths == paths


@pytest.mark.parametrize(
    "line",
    [
        'File "/app/a.py", line 12, in f',
        "    at Object.run (/app/a.js:10:5)",
        "    at async run (file:///app/a.mjs:1:2)",
        "\tat com.example.Main.main(Main.java:14)",
        "\tat java.base/java.lang.Thread.run(Native Method)",
        "   at App.Program.Main(String[] args) in C:\\app\\Program.cs:line 8",
        "    at /app/index.js:3:9",
        "#0  0x00007f3c in raise () from libc.so",
        "#1 main (argc=1) at main.c:3",
        "   3: 0x55d0c - core::panicking::panic",
        "Traceback (most recent call last):",
        "Caused by: java.io.IOException: x",
        "goroutine 1 [running]:",
        "\t/app/main.go:12 +0x1d",
        "thread 'main' panicked at src/main.rs:2:5:",
    ],
)
def test_lines_of_stack_traces_are_counted(line: str) -> None:
    for text in (line, f"```\n{line}\n```"):
        found = find_signals("", text)
        assert (found.trace_lines, found.chars, found.paths) == (1, 0, set())


@pytest.mark.parametrize(
    "line",
    ["at most (see below)", "at 12:30 it stops", "#12 is the same", "1: yes", "File a report", "x"],
)
def test_lines_that_are_not_a_trace_are_not_counted(line: str) -> None:
    assert find_signals("", line).trace_lines == 0


MEGABYTE = 300_000
HOSTILE = {
    "prose": "We refactor the thing and migrate it over there, at last. ",
    "lines": "\n",
    "one word": "a",
    "backticks": "`",
    "spans": "`a ",
    "comments": "<!--",
    "fences": "```\n",
    "items": "- x\n",
    "numbers": "1. ",
    "titles": "a:\n",
    "stars": "**",
    "colons": ":",
    "frames": "at " + "x:" * 200 + "\n",
    "calls": "at f(" + "x" * 400 + "\n",
    "slashes": "/",
    "dots": "a.",
    "blanks": "- " + " " * 900,
    "addresses": "http://",
    "beginnings": "multiple ",
    "letters": "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}\N{LATIN SMALL LETTER SHARP S}",
}


@pytest.mark.slow(sample=4)
@pytest.mark.parametrize("piece", HOSTILE)
def test_the_time_grows_with_the_text_and_no_faster(piece: str) -> None:
    def seconds(chars: int) -> float:
        text = HOSTILE[piece] * (chars // len(HOSTILE[piece]))
        began = process_time()
        score(classification="debugger", title="x" * 300, text=text)
        return process_time() - began

    # Something quadratic takes a hundred times as long for ten times as much.
    whole, tenth = seconds(MEGABYTE), seconds(MEGABYTE // 10)
    assert whole < 30 * tenth + 0.3
    assert whole < 10
