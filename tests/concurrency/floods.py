"""Agents that print more than anybody wants to read: memory, log and time stay bounded.

The sequencer is a whole ``run`` in a process of its own, which tells at its end the most
memory that it ever had. The agent prints from a program that is not Python where it can, so
that it is faster than what reads it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.long.report import Report, Size

MIB = 1024 * 1024
LINE_BYTES = 6 * MIB
"""The longest line of a client that is read as an event."""
NEWEST_BYTES = 256 * 1024
"""At most so much of the end of an output follows in a log that is full."""
ROOT = Path(__file__).parents[2]
MAX_RSS_MIB, MAX_SECONDS = 100, 60
MARKER_BYTES = 1_000
"""For the lines that a log has beside the output: what it is, how it ended, what was cut."""

# Not ru_maxrss: that one remembers the process that this one was forked from.
_MEASURED = """
import json, re, runpy, sys
from pathlib import Path
sys.argv = ["sequencer", "run", "--max-steps=1", f"--agent-step=flood={sys.argv[1]}"]
try:
    runpy.run_module("sequencer", run_name="__main__")
except SystemExit as end:
    code = end.code
peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]
print(json.dumps({"code": code, "rss_mib": int(peak) / 1024}))
"""
_CLIENT = """
import json, sys
form, size, line = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.stdin.read()
out = sys.stdout.buffer

def say(event):
    out.write(json.dumps(event, ensure_ascii=False).encode() + b"\\n")

def text_of(text):
    if sys.argv[4] == "codex":
        say({"type": "item.completed", "item": {"type": "agent_message", "text": text}})
    else:
        say({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})

if form == "line":
    for _ in range(size // 65_536):
        out.write(b"x" * 65_536)
    out.write(b"\\n")
for _ in range(size // line):
    if form == "texts":
        text_of("a line of text\\n" * (line // 17))
    elif form == "letters":
        # One of them takes four bytes of memory for each of the others.
        text_of("\\U0001f511" + "x" * (line - 200))
    elif form == "wide":
        text_of("\\U0001f511" + "x" * 2_000_000)
    elif form == "lists":
        out.write(b"[" + b"[]," * (line // 3 - 9) + b"[]]\\n")
    elif form == "words":
        out.write(b'{"type": "' + b'", "ab": "' * (line // 10 - 9) + b'"}\\n')
if sys.argv[4] == "codex":
    say({"type": "turn.completed", "usage": {}})
else:
    say({"type": "result", "is_error": False, "result": "done"})
"""


@dataclass(frozen=True, slots=True)
class Flood:
    """One agent and how much it prints."""

    name: str
    entry: dict[str, Any]
    out: int
    err: int = 0


def shell(name: str, script: str, out: int, err: int = 0) -> Flood:
    return Flood(name, {"kind": "command", "argv": ["sh", "-c", script]}, out, err)


def client(kind: str, form: str, size: int) -> Flood:
    """Return a client that prints *size* bytes as *form* says and then succeeds."""
    line = LINE_BYTES - 4096
    arguments = (form, str(size), str(line), kind)
    # The client's own arguments follow and are not looked at.
    words = " ".join(arguments)
    program = f'#!/bin/sh\nexec {sys.executable} "${{0%/*}}/client.py" {words}\n'
    return Flood(f"{kind}-{form}", {"kind": kind, "program": program}, size)


def floods(size: Size) -> Iterator[Flood]:
    big = 1024 * MIB if size is Size.LONG else 64 * MIB
    some = 256 * MIB if size is Size.LONG else 18 * MIB
    err = big // 10
    zeros = f"head -c {big} /dev/zero & yes | head -c {err} >&2; wait"
    yield shell("zeros", zeros, big, err)
    yield shell("lines", f"yes 'a line like many' | head -c {big}", big)
    yield client("claude", "line", big)
    if size is Size.SHORT:
        # One client for each form; what they do with a line is the same.
        yield client("codex", "letters", some)
        yield client("codex", "lists", some)
        return
    yield client("codex", "line", big)
    for kind, form in (
        ("claude", "texts"),
        ("codex", "letters"),
        ("claude", "wide"),
        ("codex", "wide"),
        ("codex", "lists"),
        ("claude", "words"),
    ):
        yield client(kind, form, some)


def project(folder: Path, flood: Flood, cap: int) -> None:
    """Write a project whose only step is *flood*."""
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "flood.md").write_text("Print.\n")
    (folder / "client.py").write_text(_CLIENT)
    entry = dict(flood.entry)
    if "program" in entry:
        (folder / "client").write_text(entry["program"])
        (folder / "client").chmod(0o700)
        entry["program"] = str(folder / "client")
    document = {
        "workflow": {"name": "w"},
        "workflows": {"w": {"steps": ["flood"]}},
        "logs": {"max_bytes": cap},
        "agents": {flood.name: entry},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))


def violations_of(folder: Path, flood: Flood, cap: int) -> tuple[list[str], dict[str, float]]:
    """Let *flood* run once; return what did not hold and what was measured."""
    project(folder, flood, cap)
    started = time.monotonic()
    with (folder / "shown").open("wb") as shown:
        ended = subprocess.run(
            [sys.executable, "-c", _MEASURED, flood.name],
            cwd=folder,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "PYTHONPATH": str(ROOT),
                "SEQUENCER_TRUST": "all",
            },
            stdout=subprocess.PIPE,
            stderr=shown,
            check=False,
            timeout=600,
        )
    seconds = time.monotonic() - started
    told = (ended.stdout.splitlines() or [b""])[-1]
    if ended.returncode != 0:
        last = (folder / "shown").read_bytes()[-300:]
        return [f"{flood.name}: the run itself ended with {ended.returncode}: {last!r}"], {}
    facts: dict[str, float] = json.loads(told)
    (log,) = (folder / "logs").rglob("*.log")
    capped = min(cap, flood.out + flood.err)
    texts = flood.name.endswith(("texts", "wide"))
    checks = {
        f"exit code {facts['code']}": facts["code"] == 0,
        f"{facts['rss_mib']:.0f} MiB of memory": facts["rss_mib"] < MAX_RSS_MIB,
        f"{seconds:.1f} s": seconds < MAX_SECONDS,
        f"a log of {log.stat().st_size} bytes": log.stat().st_size
        <= cap + NEWEST_BYTES + MARKER_BYTES,
        # Events that are understood are shorter in the log than they were.
        f"a log of only {log.stat().st_size}": texts or log.stat().st_size >= capped,
        "no marker": (
            log.stat().st_size < cap
            or b"# log capped at " in log.read_bytes()[cap : cap + 2 * MARKER_BYTES]
        ),
        f"{(folder / 'shown').stat().st_size} bytes on the terminal": (
            (folder / "shown").stat().st_size < (MAX_SECONDS + 2) * MIB
        ),
    }
    broken = [f"{flood.name}: {what}" for what, holds in checks.items() if not holds]
    return broken, {"rss_mib": facts["rss_mib"], "s": seconds}


def campaign(folder: Path, size: Size) -> Report:
    """Let every flood run, one after the other."""
    cap = 64 * MIB if size is Size.LONG else 8 * MIB
    violations: list[str] = []
    figures = {"rss_mib_max": 0.0, "s_max": 0.0}
    printed, tried = 0, list(floods(size))
    for flood in tried:
        broken, measured = violations_of(folder / flood.name, flood, cap)
        violations += broken
        printed += flood.out + flood.err
        for name, value in measured.items():
            figures[f"{name}_max"] = max(figures[f"{name}_max"], round(value, 1))
    return Report({"floods": len(tried), "bytes": printed}, tuple(violations), figures)
