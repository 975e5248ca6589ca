"""Agents that print what is no text, what moves a terminal, and what cuts letters in two.

A whole ``run`` works on a pseudo-terminal; each step's agent prints one payload in pieces.
What reaches the terminal may hold the sequencer's own few sequences and none of the agent's;
the log holds the agent's bytes as they were; what is printed as JSON is JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import random
import re
import select
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests import forked
from tests.acceptance.cli_process import environment, launched
from tests.long.report import Report, Size

SEED = 20_261_122
CAP = 64 * 1024
SENT = re.compile(rb"\A# sent: prompt, \d+ bytes\n(#> [^\n]*\n)*")
"""The prompt as the agent got it, with which a log starts."""
BATCH, FEW = 40, 25
"""Payloads of a batch; a few are enough for every kind of payload and of stream."""

_OWN = re.compile(rb"\x1b\[(?:[0-9]|[0-9];)*m|\x1b\[2K|\x1b\[1A|\x1b\[\?25[lh]")
"""What `rich` writes for colours and for the live line."""
_AGENTS_COLOURS = re.compile(rb"\x1b\[[0-9;]*(?:4[0-7]|5)[;m]")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]")
_SPOKEN = re.compile(rb"owned|666666666")
"""Inside of the agent's sequences only: a title, a place on the screen. So many digits, because
three of them may be the milliseconds of a time that the log itself shows."""

FRAGMENTS = (
    b"\x1b]0;owned\x07", b"\x1b]0;owned\x1b\\", b"\x1b]8;;http://owned\x1b\\x\x1b]8;;\x1b\\",
    b"\x1b]52;c;b3duZWQ=\x07", b"\x1b[666666666;1H", b"\x1b[2J", b"\x1b[5;45m", b"\x1b[?1049h",
    b"\x1b[6n", b"\x1b[c", b"\x1bc", b"\x1bPowned\x1b\\", b"\x1b_owned\x1b\\", b"\x1b#8",
    b"\x9b5;45m", b"\xc2\x9b5;45m", b"\xc2\x9d0;owned\xc2\x9c", b"\x1b[", b"\x1b", b"\x1b]",
    b"\x1b[\x1b]0;owned\x07", b"\x1b[1\x1b[5;45m", b"\0", b"\0" * 300, b"\x07", b"\x08" * 40,
    b"\x7f", b"\r" * 5_000, b"50%\r100%\r", b"\r\n", b"\n", b"\n\n\n", b"\x0b\x0c", b"\x0e\x0f",
    b"\xff\xfe", b"\xc3", b"\xf0\x9f\x94", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf",
    "é€🔑".encode(), b"plain text ", b"\t", b'"}\\', b"{{prompt}}", b"\xe2\x80\xa8", b"x" * 5_000,
)  # fmt: skip

_AGENT = """
import os, sys, time
sys.stdin.read()
index = int(os.environ["SEQUENCER_STEP_INDEX"])
stream = sys.stderr.buffer if index % 3 == 2 else sys.stdout.buffer
for piece in sorted(os.listdir(f"payloads/{index}"), key=int):
    with open(f"payloads/{index}/{piece}", "rb") as file:
        stream.write(file.read())
    stream.flush()
    time.sleep(0.002)
sys.exit(int(index + 1 == int(sys.argv[1])))
"""


def payload(chance: random.Random, number: int) -> bytes:
    """Return something that no terminal should get; every seventh ends in half a letter."""
    if number % 7 == 6:
        return b"x" * (number % 3) + "é".encode() * (CAP // 2 + 100)
    odd = [chance.randbytes(chance.randrange(1, 40)), *chance.choices(FRAGMENTS, k=8)]
    chance.shuffle(odd)
    return b"".join(odd)


def project(folder: Path, chance: random.Random, count: int) -> list[bytes]:
    """Write a project whose agent prints payloads; return them."""
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "main.md").write_text("Print.\n")
    (folder / "agent.py").write_text(_AGENT)
    document = {
        "workflow": {"name": "w"},
        "workflows": {"w": {"steps": ["main"]}},
        "logs": {"max_bytes": CAP},
        "agent": {"default": "odd"},
        "agents": {"odd": {"kind": "command", "argv": ["{python}", "-IS", "agent.py", str(count)]}},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    made = []
    for number in range(count):
        data = payload(chance, number)
        pieces = folder / "payloads" / str(number)
        pieces.mkdir(parents=True)
        cuts = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(4))})
        for place, (start, end) in enumerate(pairwise(cuts)):
            (pieces / str(place)).write_bytes(data[start:end])
        made.append(data)
    return made


def on_terminal(folder: Path, *arguments: str, typed: bytes = b"") -> bytes:
    """Run ``sequencer ARGUMENTS`` on a terminal of its own; return what the terminal got.

    *typed* waits there from the beginning.
    """
    master, slave = pty.openpty()
    os.write(master, typed)
    with launched(
        folder,
        *arguments,
        variables={"TERM": "xterm-256color", "COLUMNS": "120"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        got = b""
        deadline = time.monotonic() + 300
        with contextlib.suppress(OSError):  # EIO: the last one that held the other end is gone
            while time.monotonic() < deadline:
                if select.select([master], [], [], 1.0)[0]:
                    piece = os.read(master, 65_536)
                    if not piece:
                        break
                    got += piece
                elif process.poll() is not None:
                    break
        process.kill()
    os.close(master)
    return got


def dirt_of(shown: bytes) -> list[str]:
    """Return what of *shown* a terminal should not have got."""
    rest = _OWN.sub(b"", shown)
    found = [*_AGENTS_COLOURS.findall(shown), *_CONTROL.findall(rest), *_SPOKEN.findall(rest)]
    with contextlib.suppress(UnicodeDecodeError):
        shown.decode("utf-8")
        return [repr(one) for one in found[:3]]
    return ["no UTF-8", *(repr(one) for one in found[:3])]


_MAX_BYTES, _MAX_DIGITS, _MAX_DEPTH = 1024 * 1024, 20, 64
"""What a head or a line of the journal may have, see docs/protocol.md; a command prints no more."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        message = f"a key appears twice among {[key for key, _ in pairs]}"
        raise ValueError(message)
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        message = f"{text} is no number of JSON"
        raise ValueError(message)
    return number


def _short(text: str) -> int:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        message = f"an integer of {len(text)} digits"
        raise ValueError(message)
    return int(text)


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(map(_depth, inner), default=0) + isinstance(value, dict | list)


def _strict_object(data: bytes) -> dict[str, Any]:
    """Return the object in *data*.

    Raises:
        ValueError: it is no object, or not JSON that any other program reads in the same way.
    """
    found = json.loads(
        data.decode(),
        object_pairs_hook=_unique,
        parse_constant=_finite,
        parse_float=_finite,
        parse_int=_short,
    )
    if not isinstance(found, dict) or len(data) > _MAX_BYTES or _depth(found) > _MAX_DEPTH:
        message = f"no object, or a large one: {data[:80]!r}"
        raise ValueError(message)
    return found


def ensure_json(data: bytes) -> list[dict[str, Any]]:
    """Return the objects in *data*, one a line or one in all.

    Raises:
        ValueError: it is no strict JSON, or not of printable bytes alone.
    """
    if _CONTROL.search(data) or b"\x1b" in data:
        message = f"raw control characters in {data[:80]!r}"
        raise ValueError(message)
    lines = data.splitlines()
    try:
        return [_strict_object(line) for line in lines if line]
    except ValueError:
        whole = json.loads(data)
        return whole if isinstance(whole, list) else [_strict_object(data)]


def as_json(folder: Path, *arguments: str) -> list[str]:
    """Return why what ``sequencer ARGUMENTS --json`` prints is no JSON, if it isn't."""
    ended = forked.run(
        [sys.executable, "-m", "sequencer", *arguments, "--json"],
        cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    try:
        found = ensure_json(ended.stdout)
    except ValueError as error:
        return [f"{arguments[0]} --json: {error}"]
    return [] if found else [f"{arguments[0]} --json is empty: {ended.stderr[:200]!r}"]


def log_violations(folder: Path, number: int, data: bytes) -> list[str]:
    (log,) = (folder / "logs").rglob(f"iter-{number + 1:05d}_main.log")
    body = SENT.sub(b"", log.read_bytes().split(b"\n", 3)[3], count=1)
    kept = data[:CAP]
    if not body.startswith(kept):
        return ["the log does not begin with the agent's bytes"]
    rest = body[len(kept) :]
    if len(data) > CAP and not rest.startswith(b"\n# log capped at "):
        return [f"behind the cap stands {rest[:40]!r}"]
    return [] if b"\n# ended " in rest else ["no last line"]


def batch(folder: Path, seed: int, count: int) -> list[str]:
    """Run *count* payloads, the last of them from an agent that fails."""
    made = project(folder, random.Random(seed), count)  # noqa: S311 - no secret
    shown = {"run": on_terminal(folder, "run", f"--max-steps={count}")}
    head = json.loads((folder / "sync" / "state.json").read_bytes())
    violations = []
    if (head["step_index"], head["status"]) != (count - 1, "failed"):
        violations.append(f"step {head['step_index']} is {head['status']}")
    for number, data in enumerate(made):
        violations += [f"payload {number}: {what}" for what in log_violations(folder, number, data)]
    for verb in ("log", "history", "status"):
        shown[verb] = on_terminal(folder, verb)
        violations += as_json(folder, verb)
    for verb, got in shown.items():
        dirt = dirt_of(got)
        violations += [f"{verb}: the terminal got {', '.join(dirt)}"] if dirt else []
        violations += [] if got else [f"{verb}: the terminal got nothing"]
    return [f"seed {seed}: {what}" for what in violations]


def campaign(folder: Path, size: Size) -> Report:
    """Run batches of payloads, each with a seed of its own."""
    batches, count = (25, BATCH) if size is Size.LONG else (1, FEW)
    violations: list[str] = []
    for number in range(batches):
        violations += batch(folder / str(number), SEED + number, count)
    return Report({"payloads": batches * count}, tuple(violations))
