"""Deliveries as GitHub and Linear send them, and a server process that takes them.

The shapes are those of GitHub's webhook schema and of Linear's page about webhooks, without the
keys that nobody here reads.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sequencer import Head, Run, Status, open_project
from tests.forked import Forked

SECRET = "a secret of the tests, long enough"  # noqa: S105 - of nothing
Document = dict[str, Any]

AGENT = """
import os, sys, time
step = os.environ["SEQUENCER_STEP"]
with open(f"prompt-{step}.txt", "w", encoding="utf-8") as file:
    file.write(sys.stdin.read())
with open("calls.txt", "a", encoding="utf-8") as file:
    file.write(f"{os.environ['SEQUENCER_RUN_ID']} {step} {os.environ['SEQUENCER_TOKEN']}\\n")
while os.path.exists(f"hold-{step}"):
    time.sleep(0.02)
print(f"{step} is done")
"""

SETTINGS = f"""
agent: {{default: hand}}
agents:
  hand: {{kind: command, argv: [{sys.executable!r}, agent.py], free: true}}
workflows:
  fix: {{kind: procedure, steps: [look, {{name: ask, requires_approval: true}}, mend, tell]}}
webhooks:
  github:
    people: [ann, "id:77"]
    may_stop: [ann, boss]
    repositories: [acme/app]
    labels: [Sequencer]
    assignees: [seq-bot]
    procedure: fix
  linear:
    people: [ann@example.invalid]
    teams: [ENG]
    labels: [Sequencer]
    assignees: [bot@example.invalid]
    procedure: fix
"""


def make_project(folder: Path, settings: str = SETTINGS) -> Path:
    """Make a project that takes deliveries."""
    (folder / "prompts").mkdir(parents=True)
    (folder / "orchestration.yaml").write_text(settings, encoding="utf-8")
    (folder / "agent.py").write_text(AGENT, encoding="utf-8")
    for name in ("look", "ask", "mend", "tell"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do {name}.\n", encoding="utf-8")
    return folder


def at(seconds: float = 0) -> str:
    """Return the time of day, *seconds* from now, as trackers write it."""
    when = datetime.now(UTC) + timedelta(seconds=seconds)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def issue(number: int = 7, **changed: Any) -> Document:
    address = f"https://api.github.com/repos/acme/app/issues/{number}"
    return {
        "url": address,
        "repository_url": "https://api.github.com/repos/acme/app",
        "html_url": f"https://github.com/acme/app/issues/{number}",
        "id": 444500041,
        "number": number,
        "title": "Login times out",
        "user": {"login": "stranger", "id": 99, "type": "User"},
        "labels": [{"id": 1, "name": "sequencer", "color": "d73a4a", "default": False}],
        "state": "open",
        "assignee": None,
        "assignees": [],
        "comments": 0,
        "created_at": at(-9000),
        "updated_at": at(),
        "body": "It stops.",
        **changed,
    }


def event(action: str, sender: str = "ann", repository: str = "acme/app", **more: Any) -> Document:
    """Return an event of GitHub about an issue."""
    return {
        "action": action,
        "issue": issue(),
        "repository": {"id": 1, "full_name": repository, "default_branch": "trunk"},
        "sender": {"login": sender, "id": 12, "type": "User"},
        **more,
    }


def labeled(label: str = "sequencer", number: int = 7, **more: Any) -> Document:
    return event("labeled", **{"issue": issue(number), "label": {"name": label}, **more})


def comment(text: str, sender: str = "ann", seconds: float = 1, **more: Any) -> Document:
    said = {
        "id": uuid.uuid4().int % 10**9,
        "html_url": "https://github.com/acme/app/issues/7#issuecomment-1",
        "user": {"login": sender, "id": 12, "type": "User"},
        "created_at": at(seconds),
        "updated_at": at(seconds),
        "author_association": "MEMBER",
        "body": text,
    }
    return event("created", sender, comment=said, **more)


ANN = {"id": "u-ann", "name": "Ann", "email": "ann@example.invalid", "type": "user"}
BOT = {"id": "u-bot", "name": "Bot", "email": "bot@example.invalid"}
LABEL = {"id": "l-seq", "name": "sequencer", "color": "#f00", "parentId": None}


def linear(kind: str, action: str, data: Document, **more: Any) -> Document:
    """Return an event of Linear, sent now."""
    return {
        "action": action,
        "type": kind,
        "actor": ANN,
        "createdAt": at(),
        "data": data,
        "url": "https://linear.app/acme/issue/ENG-42/login",
        "organizationId": "o",
        "webhookTimestamp": int(time.time() * 1000),
        "webhookId": "w",
        **more,
    }


def linear_issue(**changed: Any) -> Document:
    return {
        "id": "i-42",
        "identifier": "ENG-42",
        "number": 42,
        "title": "Login times out",
        "description": "It stops.",
        "labels": [LABEL],
        "labelIds": ["l-seq"],
        "team": {"id": "t", "key": "ENG", "name": "Engineering"},
        "url": "https://linear.app/acme/issue/ENG-42/login",
        **changed,
    }


def linear_comment(text: str, user: Document | None = None) -> Document:
    about = {key: linear_issue()[key] for key in ("id", "identifier", "title", "team", "url")}
    data = {"id": "c", "createdAt": at(1), "body": text, "issue": about, "user": user or ANN}
    return linear("Comment", "create", data)


def session(action: str, activity: Document | None = None) -> Document:
    """Return an event about an agent's session in Linear."""
    about = {key: linear_issue()[key] for key in ("id", "identifier", "title", "team", "url")}
    found = linear("AgentSessionEvent", action, {})
    del found["data"], found["actor"]
    one = {"id": "s-1", "creator": ANN, "issue": about, "comment": {"id": "c2", "body": "do it"}}
    return {**found, "agentSession": one, **({"agentActivity": activity} if activity else {})}


def signed(tracker: str, document: Document, **changed: Any) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers with which *tracker* sends *document*."""
    body = json.dumps(document).encode()
    secret = str(changed.pop("secret", SECRET)).encode()
    made = hmac.new(secret, body, hashlib.sha256).hexdigest()
    headers = {"content-type": "application/json"}
    if tracker == "github":
        kind = "issue_comment" if "comment" in document else "issues"
        headers |= {
            "x-github-event": kind,
            "x-github-delivery": str(uuid.uuid4()),
            "x-hub-signature-256": f"sha256={made}",
        }
    else:
        headers |= {
            "linear-event": str(document.get("type")),
            "linear-delivery": str(uuid.uuid4()),
            "linear-signature": made,
        }
    changed = {key.replace("_", "-"): value for key, value in changed.items()}
    return body, {k: v for k, v in (headers | changed).items() if v is not None}


class Taker:
    """A server that takes deliveries."""

    def __init__(self, process: Forked, port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log

    def send(self, tracker: str, document: Document, **changed: Any) -> tuple[int, str]:
        """Deliver *document*; return the status and what was said."""
        return self.post(tracker, *signed(tracker, document, **changed))

    def post(self, tracker: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with closing(connection):
            connection.request("POST", f"/hooks/{tracker}", body, dict(headers))
            answer = connection.getresponse()
            return answer.status, str(json.loads(answer.read())["sequencer"])

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def until(self, text: str) -> None:
        """Wait until the server has said *text*."""
        wait_for(lambda: text in self.said, lambda: f"{text!r} in:\n{self.said}")


def wait_for(is_so: Callable[[], bool], words: Callable[[], str], within_s: float = 40) -> None:
    """Wait until *is_so*; *words* say what was waited for."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, words()
        time.sleep(0.02)


@contextmanager
def taking(
    folder: Path,
    state: Path,
    *more: Path,
    program: tuple[str, ...] = ("-m", "sequencer"),
    **variables: str,
) -> Iterator[Taker]:
    """Serve the project in *folder*, and *more* projects, with this user's state in *state*."""
    folders = [str(folder), *map(str, more)]
    command = [sys.executable, *program, "web", *folders, "--port", "0", "--no-browser"]
    environment = {
        **os.environ,
        "SEQUENCER_TRUST": "all",
        "XDG_STATE_HOME": str(state),
        "GITHUB_WEBHOOK_SECRET": SECRET,
        "LINEAR_WEBHOOK_SECRET": SECRET,
        **variables,
    }
    environment.pop("SEQUENCER_TOKEN", None)
    log = state.with_name(f"{state.name}.log")
    with (
        log.open("a") as said,
        Forked(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text(encoding="utf-8")
            port = int(line.partition("/login")[0].rpartition(":")[2])
            yield Taker(process, port, log)
        finally:
            process.kill()


RUN, LINEAR_RUN = "acme-app-7", "eng-42"


def run_of(folder: Path, name: str = RUN) -> Run:
    return open_project(folder, trust=True).run(name)


def head_of(folder: Path, name: str = RUN) -> Head | None:
    return run_of(folder, name).head


def until(folder: Path, status: Status, name: str = RUN) -> Head:
    """Wait until the run is at *status*, and return its head."""

    def is_so() -> bool:
        head = head_of(folder, name)
        return head is not None and head.status is status

    wait_for(is_so, lambda: f"{name} at {status}; it is {head_of(folder, name)}")
    head = head_of(folder, name)
    assert head is not None
    return head


def calls(folder: Path) -> list[str]:
    """Return the steps that were performed, in order."""
    path = folder / "calls.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.split()[1] for line in lines]


def facts(folder: Path, kind: str, name: str = RUN) -> list[dict[str, Any]]:
    return [fact for fact in run_of(folder, name).history() if fact["event"] == kind]


def rows(state: Path, query: str) -> list[Any]:
    """Return what *query* finds in the one box below *state*."""
    (path,) = state.glob("sequencer/deliveries/*/box.db")
    with closing(sqlite3.connect(path)) as db, db:
        return db.execute(query).fetchall()
