from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sequencer.cli.flow.hearing import NodeObserver
from sequencer.executors.protocol import Kind
from sequencer.executors.redaction import Redaction
from sequencer.model.outcome import Usage
from tests.unit.cli.flow.views import HOSTILE, attempt, ok

LOG = Path("log")


class Told:
    """What an observer hands on."""

    def __init__(self, redaction: Redaction | None = None) -> None:
        self.changes = 0
        self.notices: list[str] = []
        notice: Callable[[str], None] = self.notices.append
        self.observer = NodeObserver(
            "a", redaction=redaction or Redaction(), changed=self._count, notice=notice
        )

    def _count(self) -> None:
        self.changes += 1


def test_the_newest_line_also_before_its_end() -> None:
    told = Told()
    told.observer.started(attempt("a"), LOG)
    told.observer.write(b"one\ntwo\nthr", Kind.OUTPUT)
    assert told.observer.last == "thr"
    told.observer.write(b"ee\n\n\n", Kind.OUTPUT)
    assert told.observer.last == "three"
    assert told.changes == 3


def test_another_attempt_begins_with_nothing() -> None:
    told = Told()
    told.observer.started(attempt("a"), LOG)
    told.observer.write(b"old", Kind.OUTPUT)
    told.observer.used(Usage(cost_usd=0.5))
    assert told.observer.usage.cost_usd == 0.5
    told.observer.ended(attempt("a"), ok(0.5))
    assert told.observer.is_over
    told.observer.started(attempt("a"), LOG)
    assert told.observer.last == ""
    assert told.observer.usage == Usage()
    assert not told.observer.is_over


def test_notices_name_the_node() -> None:
    told = Told()
    told.observer.notice("odd")
    told.observer.waiting("no free place", None)
    assert told.notices == ["a: odd", "a waits: no free place"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_heard_is_safe(text: str) -> None:
    told = Told()
    told.observer.started(attempt("a"), LOG)
    data = text.encode("utf-8", "surrogatepass")
    # Byte by byte: sequences come in pieces.
    for place in range(len(data)):
        told.observer.write(data[place : place + 1], Kind.RESPONSE)
    told.observer.write(b"\n", Kind.RESPONSE)
    assert "\x1b" not in told.observer.last
    assert "\n" not in told.observer.last
    assert len(told.observer.last) <= 200


def test_secrets_are_not_heard() -> None:
    secret = "sk-ant-" + "a1b2c3d4" * 6
    told = Told(Redaction([secret]))
    told.observer.started(attempt("a"), LOG)
    told.observer.write(f"key {secret[:20]}".encode(), Kind.OUTPUT)
    told.observer.write(f"{secret[20:]} used\n".encode(), Kind.OUTPUT)
    assert told.observer.last.startswith("key ")
    assert secret not in told.observer.last


def test_a_flood_is_taken_in_time() -> None:
    told = Told()
    told.observer.started(attempt("a"), LOG)
    for _ in range(400):
        told.observer.write(b"x" * 8191 + b"\n", Kind.OUTPUT)
    assert len(told.observer.last) <= 200


def test_reading_while_it_is_written() -> None:
    told = Told()
    told.observer.started(attempt("a"), LOG)
    seen: set[str] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(told.observer.last)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2000):
        told.observer.write(f"line {number} end\n".encode(), Kind.OUTPUT)
    over.set()
    reader.join()
    assert all(text == "" or (text.startswith("line ") and text.endswith(" end")) for text in seen)
