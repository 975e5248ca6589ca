from __future__ import annotations

import pytest

from sequencer.cli.views.progress import BURST_BYTES, LINE_CHARS, Feed, FeedLine
from sequencer.executors.protocol import Piece
from sequencer.executors.redaction import Redaction

OUT = Piece.OUTPUT


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def texts(lines: list[FeedLine]) -> list[str]:
    return [line.text for line in lines]


def test_the_buffer_between_chunks_is_bounded() -> None:
    feed = Feed(Clock())
    for _ in range(1000):
        feed.add_output(b"z" * 10_000, OUT)
    assert sum(map(len, texts(feed.finish()))) <= LINE_CHARS + 200


WORD = "hunter2-hunter2"


def secretive(clock: Clock | None = None) -> Feed:
    return Feed(clock or Clock(), redaction=Redaction([WORD]))


def test_secrets_are_hidden_in_the_output_and_the_last_line() -> None:
    feed = secretive()
    lines = feed.add_output(f"the word is {WORD}\n{WORD} aga".encode(), Piece.OUTPUT)
    assert texts(lines) == ["the word is [secret]"]
    assert feed.last == "[secret] aga"
    assert texts(feed.finish()) == ["[secret] aga"]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_a_split_secret_is_hidden_even_where_a_long_line_is_cut(size: int) -> None:
    feed = secretive()
    text = "x" * (LINE_CHARS - 5) + WORD + "y\x1b[1m" + WORD[:6] + "\x1b[0m" + WORD[6:] + "z"
    data = text.encode()
    lines = [
        line
        for at in range(0, len(data), size)
        for line in feed.add_output(data[at : at + size], OUT)
    ]
    assert "hunter" not in feed.last
    shown = "".join(texts([*lines, *feed.finish()]))
    assert shown == "x" * (LINE_CHARS - 5) + "[secret]y[secret]z"


def test_half_a_secret_is_not_shown_next_to_a_gap() -> None:
    clock = Clock()
    feed = secretive(clock)
    feed.add_output(b"x" * (BURST_BYTES - 8) + b"\n", OUT)
    shown = feed.add_output(WORD[:7].encode(), OUT)
    shown += feed.add_output(f"{WORD[7:11]}".encode(), OUT, has_room=False)
    clock.now += 10
    shown += feed.add_output(f"{WORD[11:]} and more".encode(), OUT)
    shown += feed.add_output(b" of it\nseen\n", OUT)
    assert [text for text in texts(shown) if not text.startswith("[")] == ["seen"]
    assert "24 bytes" in texts(shown)[0]
