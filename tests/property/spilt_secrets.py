"""Agents that tell the secrets that they know, in every way that an agent can tell something.

After the run, nothing that the sequencer wrote or said may hold one of them: state, journal,
results, step logs, what ``run``, ``status``, ``history`` and ``log`` print, tracebacks.
"""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import forked
from tests.acceptance.cli_process import environment
from tests.long.report import Report, Size
from tests.unit.executors.secret_samples import JWT, plain_keys

SEED = 20_261_122
_LETTERS = string.ascii_letters + string.digits

_AGENT = r"""
import json, os, sys, time
sys.stdin.read()
known = json.load(open("known.json")) + [os.environ["MY_API_KEY"], os.environ["SERVICE_TOKEN"]]
way, out, err = sys.argv[1], sys.stdout.buffer, sys.stderr.buffer
both = " and ".join(known)

def pieces(stream, data, size):
    for at in range(0, len(data), size):
        stream.write(data[at : at + size])
        stream.flush()

def result(**said):
    open(os.environ["SEQUENCER_RESULT"], "w").write(json.dumps(said))

def event(**fields):
    print(json.dumps(fields), flush=True)

code = 0
if way == "plain":
    out.write(both.encode())
elif way == "letters":
    pieces(out, both.encode(), 1)
elif way == "pieces":
    pieces(err, both.encode(), 7)
elif way == "dying":
    err.write(("\n".join(known) + "\n").encode())
    code = 3
elif way == "json":
    out.write(json.dumps({"answer": known}).encode())
elif way == "colours":
    out.write("".join(one[:9] + "\x1b[31m" + one[9:] + "\x1b[0m " for one in known).encode())
elif way == "cap":
    out.write(b"x" * (4096 - 300) + b" ")
    pieces(out, both.encode(), 11)
elif way == "long":
    out.write(b"y" * 4090 + b" " + both.encode() + b"z" * 70_000 + b"\n" + both.encode())
elif way == "result":
    result(status="ok", output=known)
elif way == "large result":
    result(status="ok", output=(both + "\n") * 40)
elif way == "failing result":
    result(status="failed", output=both)
elif way == "odd result":
    print(known[0])
    result(status=both)
elif way == "events":
    event(type="system", subtype="init", session_id="s1", model=known[0], permissionMode=known[1])
    content = [{"type": "text", "text": both}, {"type": "thinking", "thinking": both},
               {"type": "tool_use", "name": "Bash", "input": {"command": both, "also": known}}]
    event(type="assistant", message={"id": "m", "content": content})
    for number, one in enumerate(known):
        delta = {"type": "content_block_delta", "delta": {"text": one[:8]}}
        event(type="stream_event", event=delta)
        delta = {"type": "content_block_delta", "delta": {"text": one[8:] + " "}}
        event(type="stream_event", event=delta)
    event(type="user", message={"content": [{"type": "tool_result", "content": both}]})
    event(type="result", is_error=False, result=both)
elif way == "refused":
    denials = [{"tool_name": "Bash", "tool_input": {"command": one}} for one in known]
    for one in known:
        event(type="system", subtype="permission_denied", tool_name="Bash", message=one)
    event(type="result", is_error=False, result="done", permission_denials=denials)
elif way == "api error":
    event(type="result", is_error=True, result="API Error: 400 " + both, api_error_status=400)
    code = 1
elif way == "limit":
    event(type="result", is_error=True, result="rate limit for " + both, api_error_status=429)
    code = 1
elif way == "odd lines":
    print(both, "{", json.dumps(known), sep="\n")
    err.write(both.encode())
    code = 1
sys.exit(code)
"""
COMMAND_WAYS = (
    "plain", "letters", "pieces", "dying", "json", "colours", "cap", "long", "result",
    "large result", "failing result", "odd result",
)  # fmt: skip
CLIENT_WAYS = ("events", "refused", "api error", "limit", "odd lines")


@dataclass(frozen=True, slots=True)
class Secrets:
    """What one project knows."""

    key: str
    """In the environment."""
    token: str
    """In orchestration.yaml, as a variable of the agent."""
    shaped: tuple[str, ...]
    """What looks like a key, and stands nowhere."""

    def forms(self) -> Iterator[tuple[str, bytes]]:
        """Yield each secret as it is and as JSON spells it."""
        named = {"key": self.key, "token": self.token}
        for name, text in [*named.items(), *((one[:4], one) for one in self.shaped)]:
            spelled = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
            for form in {*spelled}:
                yield name, form.encode()


def invent(chance: random.Random) -> Secrets:
    def word(length: int, letters: str = _LETTERS) -> str:
        return "".join(chance.choices(letters, k=length))

    odd = "\"'\\/+=$%&äß€🔑"
    return Secrets(
        key=word(6) + word(chance.randrange(4, 30), _LETTERS + odd),
        token=word(5, string.digits) + word(chance.randrange(4, 50), _LETTERS + odd),
        shaped=(
            f"sk-ant-{word(30)}",
            f"ghp_{word(36)}",
            f"AKIA{word(16, string.ascii_uppercase)}",
            f"AIza{word(35)}",
            f"xoxb-{word(12, string.digits)}-{word(20)}",
            JWT,
            *(key for key in chance.sample(sorted(plain_keys().values()), 30) if len(key) < 90),
        ),
    )


def project(folder: Path, secrets: Secrets, way: str) -> None:
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "main.md").write_text("Tell.\n")
    (folder / "agent.py").write_text(_AGENT)
    (folder / "known.json").write_text(json.dumps(secrets.shaped))
    (folder / "client").write_text(f"#!/bin/sh\nexec {sys.executable} agent.py '{way}'\n")
    (folder / "client").chmod(0o700)
    known = {"env": {"SERVICE_TOKEN": secrets.token}, "pass_env": ["MY_API_KEY"]}
    document = {
        "workflow": {"name": "w"},
        "workflows": {"w": {"steps": ["main"]}},
        "agent": {"default": "client" if way in CLIENT_WAYS else "program"},
        "logs": {"max_bytes": 4096 if way == "cap" else 1024 * 1024},
        "agents": {
            "program": {"kind": "command", "argv": ["{python}", "agent.py", way], **known},
            "client": {"kind": "claude", "program": str(folder / "client"), **known},
        },
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document, ensure_ascii=False))


VERBS = (
    ("--verbose", "run", "--max-steps=1"),
    ("--verbose", "tick"),
    ("status",),
    ("status", "--json"),
    ("history",),
    ("history", "--json"),
    ("log",),
    ("log", "--json"),
    ("check",),
    ("check", "--settings"),
)
OWN = {"orchestration.yaml", "agent.py", "known.json", "client", "main.md"}
"""Files of the project's author."""


def told(folder: Path, secrets: Secrets, verbs: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """Yield each place that holds a secret after *verbs* were called."""
    places: dict[str, bytes] = {}
    for arguments in verbs:
        ended = forked.run(
            [sys.executable, "-m", "sequencer", *arguments],
            cwd=folder, env=environment(MY_API_KEY=secrets.key), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=60,
        )  # fmt: skip
        places[" ".join(arguments)] = ended.stdout + ended.stderr
    places |= {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        # The agent's own file is the agent's; what is taken from it is looked for elsewhere.
        if path.is_file() and path.name not in {*OWN, "result.json"}
    }
    if "journal" not in "".join(places) or b"[secret]" not in b"".join(places.values()):
        yield f"nothing was hidden at all: {places[' '.join(verbs[0])][-200:]!r}"
    for place, data in places.items():
        found = {name for name, form in secrets.forms() if form in data}
        if found:
            yield f"{place} holds {', '.join(sorted(found))}"


def campaign(folder: Path, size: Size) -> Report:
    """Let agents tell invented secrets in every way."""
    ways = (*COMMAND_WAYS, *CLIENT_WAYS)
    rounds = 4 if size is Size.LONG else 1
    verbs = VERBS if size is Size.LONG else VERBS[:1]
    violations, count = [], 0
    for number in range(rounds):
        for way in ways:
            seed = SEED + number
            secrets = invent(random.Random(f"{seed} {way}"))  # noqa: S311 - they open nothing
            count += 2 + len(secrets.shaped)
            place = folder / f"{number}-{way.replace(' ', '-')}"
            project(place, secrets, way)
            # A run would wait: for the end of the limit, or a minute for a client without a word.
            waits = way in {"limit", "odd lines"}
            asked = (("--verbose", "tick"), *verbs[1:]) if waits else verbs
            violations += [f"seed {seed}, {way}: {one}" for one in told(place, secrets, asked)]
    return Report({"secrets": count}, tuple(violations))
