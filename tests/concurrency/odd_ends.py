"""How agents end: by exit code, by signal, without a stream, or before they began.

Each end is tried through a whole ``run``, and what the head and the journal say about it is
compared with what it was. Prompts go in by standard input, whatever their size, and nothing
of them stands on the agent's command line.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tests.contract.client_cases import FAKE_CLIENTS
from tests.long.report import Report, Size
from tests.unit.cli.calling import call, state

KIB = 1024


@dataclass(frozen=True, slots=True)
class End:
    """One way to end, and what has to be said of it."""

    name: str
    argv: tuple[str, ...]
    code: int | None = 0
    """What the journal has as exit_code; None where nothing ran."""
    says: str = ""
    """What the error has to hold."""
    made: Callable[[Path], None] | None = None
    """Makes what argv names, in the project's folder."""
    is_refused: bool = False
    """Found before the claim: the command ends with 2, and there is no run."""


def _program(text: str, mode: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "program").write_text(text)
        (folder / "program").chmod(mode)

    return write


ENDS = (
    End("success", ("sh", "-c", "cat >/dev/null; echo fine")),
    End("without reading", ("true",)),
    End("stdout closed early", ("sh", "-c", "exec >&-; sleep 0.2")),
    End("all streams closed early", ("sh", "-c", "exec <&- >&- 2>&-; sleep 0.2")),
    End("stdout handed on", ("sh", "-c", "(sleep 0.2; echo late) & exit 0")),
    End("failure", ("sh", "-c", "echo why >&2; exit 3"), 3, "why"),
    End("code 255", ("sh", "-c", "exit 255"), 255, "255"),
    End("killed", ("sh", "-c", "kill -KILL $$"), -9, "SIGKILL"),
    End("code 137", ("sh", "-c", "exit 137"), 137, "SIGKILL"),
    End("terminated", ("sh", "-c", "kill -TERM $$"), -15, "SIGTERM"),
    End("segmentation fault", ("sh", "-c", "kill -SEGV $$"), -11, "SIGSEGV"),
    End("aborted", ("sh", "-c", "ulimit -c 0; kill -ABRT $$"), -6, "SIGABRT"),
    End("failure behind a closed stdout", ("sh", "-c", "exec >&-; exit 4"), 4, "exit code 4"),
    End("ENOENT", ("no-such-program",), None, "not a program on PATH", is_refused=True),
    End("ENOENT of a path", ("./no-such-program",), None, "is not a program", is_refused=True),
    End("EACCES", ("./program",), None, "not executable", _program("#!/bin/sh\n", 0o644),
        is_refused=True),
    End("ENOEXEC", ("./program",), None, "neither", _program("just text\n", 0o755)),
    End("no interpreter", ("./program",), None, "interpreter", _program("#!/no/such\n", 0o755)),
    End("a folder", ("./program",), None, "is not a program", lambda f: (f / "program").mkdir(),
        is_refused=True),
)  # fmt: skip


def project(folder: Path, entry: dict[str, Any], prompt: str = "Do it.\n") -> Path:
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "main.md").write_text(prompt)
    document = {
        "workflow": {"name": "w"},
        "workflows": {"w": {"steps": ["main"]}},
        "agent": {"default": "agent"},
        "agents": {"agent": entry},
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


def end_violations(folder: Path, end: End) -> list[str]:
    project(folder, {"kind": "command", "argv": list(end.argv)})
    if end.made is not None:
        end.made(folder)
    ran = call(folder, "run", "--max-steps=1", "--quiet")
    if end.is_refused:
        is_told = (ran.code, end.says in ran.err) == (2, True)
        has_begun = (folder / "sync" / "state.json").exists()
        return [f"{end.name}: {ran}"] * (has_begun or not is_told)
    head = state(folder)
    (record,) = [
        fact
        for line in call(folder, "history", "--json").out.splitlines()
        if (fact := json.loads(line))["event"] in ("succeeded", "failed")
    ]
    is_fine = end.code == 0
    outcome = record["outcome"]
    checks = {
        f"exit code {ran.code}": ran.code == (0 if is_fine else 1),
        f"step_index {head['step_index']}": head["step_index"] == int(is_fine),
        f"event {record['event']}": record["event"] == ("succeeded" if is_fine else "failed"),
        f"recorded code {outcome.get('exit_code')}": outcome.get("exit_code") == end.code,
        f"error {outcome.get('error')!r}": end.says in (outcome.get("error") or ""),
        "its claim is still there": head["claims"] == [],
    }
    return [f"{end.name}: {what}" for what, holds in checks.items() if not holds]


_READER = """
import json, sys
from hashlib import blake2b
from pathlib import Path
got = sys.stdin.buffer.read()
line = Path("/proc/self/cmdline").read_bytes()
environ = Path("/proc/self/environ").read_bytes()
Path("got.json").write_text(json.dumps([blake2b(got).hexdigest(), len(line), b"canary" in line,
                                        b"canary" in environ]))
"""


def prompt_violations(folder: Path, client: str, size: int) -> list[str]:
    """Give *client* a prompt of *size* bytes; return what of it went the wrong way."""
    text = ("canary ü\n" * (size // 10 + 1)).encode()[:size].decode("utf-8", "ignore")
    entry: dict[str, Any] = {"kind": "command", "argv": ["{python}", "reader.py"]}
    if client != "command":
        entry = {"kind": client, "program": str(folder / client), "env": {}}
    project(folder, entry, text)
    (folder / "reader.py").write_text(_READER)
    if client != "command":
        # What the client would print follows what is noted about its prompt.
        shutil.copy(FAKE_CLIENTS / "event_streams.py", folder)
        plan = {"leaves": None, "result": None, "answer": "done", "delay_s": 0, "fails": False}
        (folder / "plan.json").write_text(json.dumps(plan))
        run = f"import os, sys\nsys.path.insert(0, {str(folder)!r})\nos.chdir({str(folder)!r})\n"
        run += f"os.environ['FAKE_CLIENT_PLAN'] = {str(folder / 'plan.json')!r}\n"
        run += _READER + f"from event_streams import main\nsys.exit(main({client!r}))\n"
        (folder / client).write_text(f"#!{sys.executable}\n{run}")
        (folder / client).chmod(0o700)
    ran = call(folder, "run", "--max-steps=1", "--quiet")
    if ran.code != 0 or not (folder / "got.json").exists():
        return [f"{client}, {size} bytes: exit code {ran.code}: {ran.err[-200:]}"]
    digest, line, in_argv, in_environ = json.loads((folder / "got.json").read_text())
    checks = {
        "another prompt": digest == blake2b(text.encode()).hexdigest(),
        f"a command line of {line} bytes": line < 4 * KIB,
        "the prompt on the command line": not in_argv,
        "the prompt in the environment": not in_environ,
    }
    return [f"{client}, {size} bytes: {what}" for what, holds in checks.items() if not holds]


def largest_prompt(folder: Path) -> int:
    """Return how many bytes a prompt may have: the refusal of a larger one says it."""
    project(folder, {"kind": "command", "argv": ["true"]}, "x" * (32 * KIB * KIB))
    refused = call(folder, "run", "--max-steps=1", "--quiet")
    found = re.search(r"the prompt has more than (\d+) bytes", refused.err)
    assert refused.code == 2, refused.err
    assert found, refused.err
    return int(found[1])


def campaign(folder: Path, size: Size) -> Report:
    """Try each end, and prompts up to the largest for each client."""
    rounds = 20 if size is Size.LONG else 1
    sizes = [300 * KIB, 5_000_000, largest_prompt(folder / "largest")]
    if size is Size.LONG:
        # One argument of a program ends at 128 KiB.
        sizes += [1, 128 * KIB - 1, 128 * KIB, 1024 * KIB]
    clients = ("command", "claude", "codex", "gemini", "opencode")
    prompts = [(client, amount) for client in clients for amount in sizes]
    ends: tuple[End, ...] = ENDS
    if size is Size.SHORT:
        # Each client has a prompt, each size a client; each kind of end is among the ends.
        prompts, ends = list(zip(clients, itertools.cycle(sizes), strict=False)), ENDS[::2]
    violations: list[str] = []
    for number in range(rounds):
        for place, end in enumerate(ends):
            violations += end_violations(folder / f"{number}-{place}", end)
    for client, amount in prompts:
        violations += prompt_violations(folder / f"{client}-{amount}", client, amount)
    return Report({"ends": rounds * len(ends), "prompts": len(prompts)}, tuple(violations))
