"""Feeds what real clients printed (recorded/*.jsonl) to a parser.

The first line of a recording holds the exit code and stderr, the others are stdout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sequencer.engine.evidence import judge_turn
from sequencer.executors.client_events import JsonEventParser, Rules
from sequencer.executors.process import ProcessEnd
from sequencer.model.outcome import Outcome
from tests.contract.executor_cases import Recorder

RECORDED = Path(__file__).with_name("recorded")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RULES = Rules(clock=lambda: NOW)
STRICT = Rules(clock=lambda: NOW, fail_on_denial=True)


@dataclass(frozen=True)
class Replayed:
    outcome: Outcome
    heard: Recorder


def recording(name: str) -> tuple[ProcessEnd, str, list[bytes]]:
    """Return how the recorded run ended, its stderr and its lines of stdout."""
    head, *lines = (RECORDED / f"{name}.jsonl").read_bytes().splitlines()
    facts = json.loads(head)
    end = ProcessEnd(exit_code=facts["exit_code"], stderr_tail=facts["stderr"], seconds=1.5)
    return end, facts["stderr"], lines


def replay(name: str, parser: JsonEventParser) -> Replayed:
    """Return what *parser* makes of the recording called *name*."""
    end, stderr, lines = recording(name)
    return feed(parser, lines, stderr=stderr, end=end)


def feed(
    parser: JsonEventParser,
    lines: list[bytes],
    *,
    stderr: str = "",
    end: ProcessEnd | None = None,
) -> Replayed:
    """Return what becomes of an attempt whose *parser* has read *lines*."""
    heard = Recorder()
    for line in lines:
        parser.feed_line(line, heard)
    for text in stderr.splitlines():
        parser.feed_stderr(text.encode())
    return Replayed(judge_turn(parser.finish(end or ProcessEnd(exit_code=0))), heard)


def encoded(*events: Mapping[str, object]) -> list[bytes]:
    """Return *events* as lines of stdout."""
    return [json.dumps(event).encode() for event in events]
