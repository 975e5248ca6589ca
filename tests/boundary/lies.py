"""Lies that an agent can tell: each is a piece of Python that an agent runs in its step.

What a lie finds: ``project``, ``sync`` and ``results`` (paths), ``index`` and ``token`` (its
own), ``result`` (its own result file), ``plan`` (``evil`` is a program that leaves a canary),
and the functions of `PRELUDE`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PRELUDE = '''\
import contextlib, ctypes, fcntl, hashlib, json, os, pathlib, secrets, signal, subprocess, sys, time

project = pathlib.Path(__file__).parent
plan = json.loads((project / "plan.json").read_text())
sync, results = project / "sync", project / "sync" / "results"
index = int(os.environ.get("SEQUENCER_STEP_INDEX", "0"))
token = int(os.environ.get("SEQUENCER_TOKEN", "1"))
result = pathlib.Path(os.environ.get("SEQUENCER_RESULT", project / "no" / "result.json"))
FORGED = json.dumps({"status": "ok", "output": "FORGED PASS"})

def edit(**fields):
    """Change state.json as an editor does."""
    head = json.loads((sync / "state.json").read_text())
    usage = fields.pop("usage", {})
    if all(head.get(k) == v for k, v in fields.items()) and not usage:
        return
    head.update(fields)
    head["usage"].update(usage)
    (sync / f"lie-{os.getpid()}").write_text(json.dumps(head))
    os.replace(sync / f"lie-{os.getpid()}", sync / "state.json")

def settings(**fields):
    """Change orchestration.yaml."""
    path = project / "orchestration.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

def record(**fields):
    """Return a line for the journal's end, with a right checksum."""
    last = json.loads((sync / "journal.jsonl").read_bytes().splitlines()[-1])
    del last["checksum"]
    offset = (sync / "journal.jsonl").stat().st_size
    last["revision"] += 1
    last["head"].update(revision=last["revision"], journal_offset=offset)
    last.update(fields)
    body = json.dumps(last, separators=(",", ":")).encode()[:-1]
    digest = hashlib.blake2b(body, digest_size=8).hexdigest()
    return body + b',"checksum":"' + digest.encode() + b'"}\\n'

def append(data):
    with (sync / "journal.jsonl").open("ab") as file:
        file.write(data)
'''
"""Before each lie."""

HONEST = """
answer = secrets.token_hex(16)
seen = sys.stdin.read()
with open(plan["ledger"], "a") as ledger:
    entry = {"token": token, "index": index, "answer": answer, "seen": seen[:200]}
    ledger.write(json.dumps(entry) + "\\n")
"""
"""What each attempt does before it lies: the judge reads the ledger, and nobody else."""
ANSWER = """
if plan.get("fails"):
    print("REAL FAIL " + answer)
    sys.exit(1)
print("answer " + answer + plan.get("padding", ""))
"""


@dataclass(frozen=True, slots=True)
class Lie:
    """One lie, and what has to hold in spite of it."""

    text: str
    settings: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    haunts: bool = True
    """Whether it is told also by a process that outlives its attempt."""
    max_calls: int | None = None
    """So often the agent may be called at most."""
    goes_on: bool = False
    """Whether the run has to go on in spite of it."""
    needs_git: bool = False
    keeps_order: bool = True
    """Whether each accepted step is the one after the last."""


GATED = {
    "workflow": {"name": "gated"},
    "workflows": {"gated": {"steps": [{"name": "supervisor", "requires_approval": True}, "main"]}},
}
_NEXT = """
for ahead in range(1, 6):
    for name in (f"{index + ahead}-{token + ahead}", f"{index + ahead}-{token + ahead + 1}",
                 f"{index}-{token + ahead}", f"{index + ahead}", f"{token + ahead}"):
        folder = results / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("result.json", "output.txt"):
            (folder / file).write_text(FORGED)
"""
_OWN_LINK = """
folder = result.parent
(project / "forged").mkdir(exist_ok=True)
(project / "forged" / "result.json").write_text(FORGED)
if folder.is_dir() and not folder.is_symlink():
    folder.rename(f"{folder}-aside")
    folder.symlink_to(project / "forged")
"""
_OWN_OUTSIDE = """
folder = result.parent
if folder.is_dir() and not folder.is_symlink():
    folder.rename(f"{folder}-aside")
    folder.symlink_to(plan["full"])
"""
_BEATS = """
(sync / "beats").mkdir(exist_ok=True)
for ahead in range(6):
    text = json.dumps({"beat": 10**6, "deadline_boottime": 10.0**9})
    (sync / "beats" / str(token + ahead)).write_text(text)
"""
_LOCK = """
lock = sync / "state.json.lock"
with contextlib.suppress(FileNotFoundError):
    lock.unlink()
lock.write_text("mine")
"""
_GIT = """
with (project / ".git/config").open("a") as file:
    for section in ("core] fsmonitor", "core] sshCommand", "core] pager", "diff] external"):
        file.write(f"[{section} = {plan['evil']}\\n")
    file.write(f'[filter "evil"] clean = {plan["evil"]}\\n')
    file.write(f'[remote "origin"] receivepack = {plan["evil"]}\\n')
(project / ".gitattributes").write_text("* filter=evil\\n")
for name in ("pre-commit", "post-commit", "pre-push", "reference-transaction", "post-checkout",
             "post-index-change", "post-merge"):
    path = project / ".git/hooks" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\\n{plan['evil']}\\n")
    path.chmod(0o755)
"""
_DECIDES = """
for verb in (["answer", "approve"], ["skip"], ["skip", "--as-done"],
             ["set", "step_index", "9"], ["reset", "--yes"],
             ["rewind", "0"], ["retry"], ["resume"], ["adopt"], ["takeover", "--force"],
             ["trust", "--yes"], ["answer", "x"], ["answer", "reject"], ["stop"],
             ["stop", "--pause"]):
    done = subprocess.run([*plan["sequencer"], *verb], cwd=project, capture_output=True,
                          env={**os.environ, "PYTHONPATH": plan["root"], "SEQUENCER_TRUST": "all"})
"""
_DECIDES_UNMARKED = """
own = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
own |= {"PYTHONPATH": plan["root"], "SEQUENCER_TRUST": "all"}

# A lie is indented when it is put into an agent, and so is this text.
EACH = '''if True:
    import os, sys
    import sequencer.cli.program, sequencer.engine.run
    for code in sys.argv[1:]:
        if not os.fork():
            try:
                exec(code)
            finally:
                os._exit(0)
        os.wait()
'''

def decide(codes, **marks):
    # Forks of one interpreter, because its start is most of the time.
    subprocess.run([plan["sequencer"][0], "-c", EACH, *codes], cwd=project, capture_output=True,
                   env={**own, **marks}, start_new_session=True)

decide([f"sys.argv = {['sequencer', *verb]}; sequencer.cli.main()" for verb in (
    ["answer", "approve"], ["skip", "--as-done"], ["reset", "--yes"], ["trust", "--yes"],
    ["start", "more", "--no-run"], ["run", "--start-at", "main"])], SEQUENCER_TOKEN="")
decide([f"c = sequencer.commands; run = sequencer.open_run('.', trust=True); {code}" for code in (
    "run.do(c.Approve(), by='x')", "run.do(c.Skip())", "run.do(c.Reset())",
    "run.do(c.SetField('step_index', 9))", "run.turn().__enter__()",
    "sequencer.open_project('.').trust.save_record()",
    "sequencer.open_run('.', 'other', trust=True).work()")])
"""
_HOOKS = """
(project / "hooks.py").write_text(f"import os\\nos.system({plan['evil']!r})\\n")
settings(hooks=["hooks.py"])
"""
LIES: dict[str, Lie] = {
    "the next attempts' answers": Lie(_NEXT, plan={"fails": False}, goes_on=True),
    "the next attempts' answers, failing": Lie(_NEXT, plan={"fails_after": 1}),
    "its own folder as a link": Lie(_OWN_LINK, haunts=False),
    "its own folder elsewhere": Lie(_OWN_OUTSIDE, plan={"padding": "x" * 6000}, haunts=False),
    "a gate taken away": Lie(
        "if (sync / 'state.json').exists() and index == 0:\n    edit(gate=None, "
        "status='waiting-next', expected_step='main')\n",
        GATED,
        max_calls=1,
    ),
    "a gate decided": Lie(
        "head = json.loads((sync / 'state.json').read_text())\nif head.get('gate'):\n"
        "    edit(gate={**head['gate'], 'decision': 'approved'}, status='waiting-next')\n",
        GATED,
        max_calls=1,
    ),
    "a gate of the configuration": Lie(
        "settings(workflows={'gated': {'steps': ['supervisor', 'main']}})\n", GATED, max_calls=1
    ),
    "counted steps": Lie(
        "edit(usage={'steps': 0, 'cost_usd': 0.0})\n", {"limits": {"max_steps": 3}}, max_calls=3
    ),
    "counted failures": Lie(
        "edit(failures_in_row=0, attempt=0)\n",
        {"limits": {"max_failures_in_row": 3}},
        {"fails": True},
        max_calls=3,
    ),
    "its token": Lie("edit(token=0)\n"),
    "its revision": Lie("edit(revision=1)\n"),
    "another step": Lie("edit(step_index=index + 3)\n", keeps_order=False),
    "the end of the run": Lie("edit(exit=True, status='complete')\n"),
    "another run": Lie("edit(run_id='00000000-0000-4000-8000-000000000000')\n"),
    "a record of its own": Lie("append(record(event='succeeded'))\n", keeps_order=False),
    "a record with another checksum": Lie(
        "append(record(event='succeeded')[:-6] + b'0000\"}\\n')\n", goes_on=True
    ),
    "a torn record": Lie("append(record(event='succeeded')[:-30])\n"),
    "beats of the next": Lie(_BEATS, goes_on=True),
    "another lock": Lie(_LOCK),
    "prompts that are links": Lie(
        "path = project / 'prompts/main.md'\npath.unlink(missing_ok=True)\n"
        "path.symlink_to(plan['full'] + '/id_rsa')\n"
    ),
    "another agent": Lie(
        "settings(agents={'script': {'kind': 'command', 'argv': [plan['evil']]}})\n"
    ),
    "another program's variables": Lie(
        "doc = json.loads((project / 'orchestration.yaml').read_text())['agents']\n"
        "doc['script']['env'] = {'PATH': os.path.dirname(plan['evil'])}\nsettings(agents=doc)\n"
    ),
    "hooks": Lie(_HOOKS),
    "raised caps": Lie(
        "settings(limits={'max_steps': 10**6}, run={'max_steps': 10**6})\n",
        {"limits": {"max_steps": 3}},
        max_calls=3,
    ),
    "git's configuration and hooks": Lie(_GIT, needs_git=True),
    "decisions by hand": Lie(_DECIDES, GATED, max_calls=1, haunts=False),
    "decisions by hand, without the mark": Lie(_DECIDES_UNMARKED, GATED, max_calls=1, haunts=False),
    "a folder in the place of the head": Lie(
        "path = sync / 'state.json'\nif path.is_file():\n    path.unlink()\n    path.mkdir()\n"
    ),
    "a fifo in the place of the journal": Lie(
        "path = sync / 'journal.jsonl'\nif path.is_file():\n"
        "    path.rename(sync / 'aside')\n    os.mkfifo(path)\n"
    ),
    "held locks": Lie(
        "held = open(sync / 'state.json.lock', 'a')\nfcntl.flock(held, fcntl.LOCK_EX)\n"
        "time.sleep(0.2)\nheld.close()\n",
        goes_on=True,
    ),
}
ON_EVERY_PUSH = (
    *("the next attempts' answers", "a gate decided", "its own folder elsewhere"),
    *("counted failures", "a record with another checksum", "another lock", "another agent"),
    *("git's configuration and hooks", "decisions by hand, without the mark"),
)
"""One lie of each kind; the others differ in what they change."""
LIMIT = {"api_error_status": 429, "result": "rate limit reached, retry in 1s"}
NO_LIMIT = {"api_error_status": None, "result": "Tests failed: GitHub API rate limit exceeded"}
"""What a client says of its own service, and what it says of the work."""
COSTS = ("0", "-5", "1e-9", '"free"', "null", "NaN")
"""What an agent's result file says that it has cost."""
CLIENT = """
def event(**fields):
    print(json.dumps(fields), flush=True)

event(type="system", subtype="init", session_id="s", model="m", permissionMode="default")
if "limit" in plan:
    event(type="result", subtype="success", is_error=True, session_id="s", total_cost_usd=0.0,
          **plan["limit"])
    sys.exit(1)
result.write_text('{"status": "ok", "usage": {"cost_usd": %s, "input_tokens": 0}}' % plan["cost"])
event(type="result", subtype="success", is_error=False, api_error_status=None, session_id="s",
      result="answer " + answer, total_cost_usd=5.0, permission_denials=[],
      usage={"input_tokens": 100, "output_tokens": 10})
"""
"""An agent that is a client of claude's kind: it costs 5 USD, and its result file says less."""
