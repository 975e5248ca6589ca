from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sequencer.cli.views.text import Sanitizer, strip_controls

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
HOSTILE = st.lists(
    st.sampled_from(
        [
            "text",
            "\x1b",
            "[",
            "]",
            "31m",
            "0;title",
            "\x07",
            "\x1b\\",
            "P",
            "\x9b",
            "\x9d",
            "\x9c",
            "\r",
            "\n",
            "\t",
            "é",
            "計",
            "\x08",
            "\x00",
            "?25l",
            " ",
        ]
    ),
    max_size=30,
).map("".join)


def streamed(chunks: list[bytes]) -> str:
    sanitiser = Sanitizer()
    return "".join([*map(sanitiser.feed, chunks), sanitiser.finish()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text\n\tindented\n", "plain text\n\tindented\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;5;196;1mred\x1b[m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b[2J\x1b[H\x1b[?25lgone", "gone"),
        ("\x1b[5 qcursor", "cursor"),
        ("\x1b]0;owned\x07title", "title"),
        ("\x1b]0;owned\x1b\\title", "title"),
        ("\x9d8;;http://example.org\x9clink", "link"),
        ("\x1b]8;;http://example.org\x07link\x1b]8;;\x07", "link"),
        ("\x1bPq#0;2;0;0;0\x1b\\sixel", "sixel"),
        ("\x1b_apc\x1b\\\x1b^pm\x1b\\\x1bXsos\x1b\\rest", "rest"),
        ("\x1bcreset\x1b(Bcharset\x1b7saved", "resetcharsetsaved"),
        ("bell\x07 back\x08space null\x00 del\x7f", "bell backspace null del"),
        ("vertical\x0btab form\x0cfeed", "verticaltab formfeed"),
        ("answer\x1b[c\x1b[6n\x05back", "answerback"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("windows\r\nline\r\n", "windows\nline\n"),
        ("over\rwritten", "written"),
        ("kept\r", "kept"),
        ("a\ud800b", "a\ufffdb"),
        ("\u202agpj.\u202eexe\u202c \u202bx\u202d", "gpj.exe x"),
        ("\u2066a\u2067b\u2068c\u2069 \u200ed\u200fe\u061cf", "abc def"),
        ("\x1b\u202e[31mred", "[31mred"),
        ("re\u00adle\u034fa\u115fs\u1160e\u180e-\u28001\u3164.\uffa00", "release-1.0"),
        (
            "joined \u200d \u200c: \U0001f469\u200d\U0001f4bb",
            "joined \u200d \u200c: \U0001f469\u200d\U0001f4bb",
        ),
        ("lonely \x1b", "lonely "),
        ("unfinished \x1b[31", "unfinished 31"),
        ("unfinished \x1b]0;title", "unfinished "),
        ("unfinished \x1b]0;title\nnext line", "unfinished \nnext line"),
    ],
)
def test_control_sequences_are_removed_from_text(text: str, expected: str) -> None:
    assert strip_controls(text) == expected
    if "\ud800" not in text:
        assert streamed([text.encode()]) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sequences_are_found_across_chunks(size: int) -> None:
    data = (
        "é \x1b[31mred\x1b[0m \x1b]0;a title\x07計画 \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ "
        "\x1bPdevice\x1b\\end\n\x9b1mbold\n"
    ).encode()
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert streamed(chunks) == "é red 計画 link end\nbold\n"


def test_a_line_end_split_over_chunks_is_one_line_end() -> None:
    assert streamed([b"one\r", b"\ntwo\r", b"\r", b"\nthree"]) == "one\ntwo\nthree"


@given(st.lists(HOSTILE.map(str.encode), max_size=8), st.binary(max_size=40))
def test_no_control_characters_remain_in_a_stream(chunks: list[bytes], odd: bytes) -> None:
    assert CONTROL.search(streamed([*chunks, odd])) is None


@given(
    st.text(
        alphabet=st.characters(
            blacklist_categories=["Cc", "Cf", "Cs"],
            blacklist_characters="\u034f\u115f\u1160\u2800\u3164\uffa0",
            max_codepoint=0xDFFFF,
        ),
        max_size=100,
    )
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert strip_controls(text) == text
    data = text.encode()
    assert streamed([data[:7], data[7:]]) == text


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b" * 300_000,
        "\x9b1;" * 100_000,
        "\x1b]" * 150_000,
        "x" * 300_000 + "\x07",
        "a\r" * 150_000,
    ],
)
def test_no_text_takes_quadratic_time(hostile: str) -> None:
    started = time.process_time()
    strip_controls(hostile)
    assert time.process_time() - started < 2
