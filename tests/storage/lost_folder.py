"""The run's folder removed while processes work on it, as ``git clean`` or an agent does.

A process that is alive knows its run, so it refuses (exit 3) and never begins another one,
nor adds to one that somebody else has begun in its place.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.long.report import Report, Size
from tests.storage.commands import Ended, accepted, argv_of, environment, facts, sequencer

AGENT = """\
import os, pathlib, shutil, sys, time
sys.stdin.read()
plan = pathlib.Path("plan")
orders = plan.read_text() if plan.exists() else ""
plan.unlink(missing_ok=True)
with open("done.txt", "a") as file:
    file.write(os.environ["SEQUENCER_STEP_INDEX"] + "\\n")
exec(orders)
"""
QUIET = 'shutil.rmtree("sync")'
REMOVALS = {
    "all of it, with an answer": f'{QUIET}; print("done")',
    "all of it, without an answer": QUIET,
    "what is in it": "[shutil.rmtree(p) if p.is_dir() else p.unlink() for p in "
    'pathlib.Path("sync").iterdir()]',
    "its two files": '[pathlib.Path("sync", n).unlink() for n in ("state.json", "journal.jsonl")]',
}
BEGIN = 'pathlib.Path("begun").touch()'
WAIT = f'{BEGIN}\nwhile not pathlib.Path("theirs").exists(): time.sleep(0.02)\nprint("mine")'
THEN_SLOW = 'pathlib.Path("theirs").touch(); time.sleep(4); print("other")'
LIMIT_S = 30.0


def made(folder: Path, plan: str, **settings: Any) -> Path:
    """Make a project whose agent follows *plan* once, and does nothing after that."""
    (folder / "prompts").mkdir(parents=True)
    for name in ("supervisor", "main"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do the work of {name}.\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / "plan").write_text(plan)
    document = {
        "workflow": {"name": "standard"},
        "agent": {"default": "script"},
        "agents": {"script": {"kind": "command", "argv": [sys.executable, "-IS", "agent.py"]}},
        "store": {"ttl_s": 2},
        **settings,
    }
    (folder / "orchestration.yaml").write_text(json.dumps(document))
    return folder


@contextmanager
def working(folder: Path, *arguments: str) -> Iterator[Callable[[], Ended]]:
    """Start ``sequencer ARGUMENTS``; what is yielded waits for its end."""
    process = subprocess.Popen(
        argv_of(*arguments),
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def ended() -> Ended:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return Ended(None, "", "")
        return Ended(process.returncode, out, err)

    try:
        yield ended
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def by_the_agent(folder: Path, removal: str) -> Iterator[str]:
    """Let the first step's agent remove the folder; nothing may go on by itself after that."""
    made(folder, removal)
    for arguments in (("run", "--max-steps", "3"), ("tick",), ("run",)):
        yield f"{arguments}: {sequencer(folder, *arguments).wrong(3)}"
    done = (folder / "done.txt").read_text().split()
    yield "" if done == ["0"] else f": steps {done} ran"
    shutil.rmtree(folder / "sync")
    ended = sequencer(folder, "tick")
    yield f"after a person has removed it: {ended.wrong(0)}"
    is_told = "a new run starts" in ended.err
    yield "" if is_told else f": a run starts over without a word: {ended.err}"


def beside_the_agent(folder: Path) -> Iterator[str]:
    """Remove the folder while the agent runs."""
    made(folder, f"{BEGIN}; time.sleep(3)")
    with working(folder, "run", "--max-steps", "2") as ended:
        until((folder / "begun").exists)
        shutil.rmtree(folder / "sync")
        yield f": {ended().wrong(3)}"
        yield f"then: {sequencer(folder, 'tick').wrong(3)}"


def beside_the_agent_anew(folder: Path) -> Iterator[str]:
    """Begin another run in the place of the one whose agent runs, with the same token."""
    made(folder, WAIT, store={"ttl_s": 60})
    with working(folder, "run", "--max-steps", "2") as ended:
        until((folder / "begun").exists)
        (claim,) = json.loads((folder / "sync" / "state.json").read_text())["claims"]
        # It looks at the run each second, and must not before the other one has begun.
        os.kill(claim["owner"]["pid"], signal.SIGSTOP)
        shutil.rmtree(folder / "sync")
        (folder / "plan").write_text(THEN_SLOW)
        with working(folder, "tick") as other:
            until((folder / "theirs").exists)
            os.kill(claim["owner"]["pid"], signal.SIGCONT)
            yield f"the first: {ended().wrong(3)}"
            yield f"the second: {other().wrong(0)}"
        yield from only_the_others(folder)


def only_the_others(folder: Path) -> Iterator[str]:
    told = facts(folder)
    said = [fact["outcome"].get("output") for fact in told if fact["event"] == "succeeded"]
    is_right = accepted(told) == [0] and said == ["other"]
    yield "" if is_right else f": the other run has accepted {said}: {told}"


def beside_a_waiter(folder: Path, *, begins_anew: bool) -> Iterator[str]:
    """Remove the folder while a process waits for its turn, with nobody at work."""
    made(folder, "")
    sequencer(folder, "tick")
    (folder / "plan").write_text("")
    with working(folder, "run", "--mode", "sync", "--position", "supervisor") as ended:
        # It queues when it has seen that the step is not its own.
        until(lambda: any((folder / "sync").glob("turnstile*")))
        time.sleep(0.5)
        shutil.rmtree(folder / "sync")
        if begins_anew:
            yield f"a new run: {sequencer(folder, 'run', '--max-steps', '2').wrong(0)}"
        yield f": {ended().wrong(3)}"
    if begins_anew:
        told = accepted(facts(folder))
        yield "" if told == [0, 1] else f": the new run has accepted {told}"


def beside_a_retry(folder: Path) -> Iterator[str]:
    """Remove the folder while a process waits for the date of its next attempt."""
    made(folder, "sys.exit(1)", step_defaults={"retry": {"max_attempts": 3, "initial_delay_s": 3}})
    with working(folder, "run", "--max-steps", "1") as ended:
        until(lambda: '"retry"' in text_of(folder / "sync/state.json"))
        shutil.rmtree(folder / "sync")
        yield f": {ended().wrong(3)}"
    done = (folder / "done.txt").read_text().split()
    yield "" if done == ["0"] else f": steps {done} ran"


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _violations(case: tuple[str, Iterator[str]]) -> list[str]:
    name, texts = case
    return [f"{name}, {text}" for text in texts if text and not text.endswith(": ")]


def campaign(folder: Path, size: Size) -> Report:
    """Remove the run's folder while an agent runs, while processes wait, and between steps."""
    is_short = size is Size.SHORT
    rounds = 1 if is_short else 5
    wrong, inputs = [], 0
    for number in range(rounds):
        place = folder / str(number)
        cases = {
            f"the agent removes {name}": by_the_agent(place / str(index), removal)
            for index, (name, removal) in enumerate(
                list(REMOVALS.items())[: 2 if is_short else None]
            )
        }
        for anew in (False, True):
            suffix = ", a new run" if anew else ""
            cases |= {
                f"beside a waiter{suffix}": beside_a_waiter(place / f"w{anew}", begins_anew=anew),
            }
        cases["beside the agent"] = beside_the_agent(place / "agent")
        cases["beside the agent, a new run"] = beside_the_agent_anew(place / "anew")
        cases["beside a retry"] = beside_a_retry(place / "retry")
        # They sleep most of the time.
        with ThreadPoolExecutor(5) as pool:
            told = pool.map(_violations, cases.items())
            wrong += [text for texts in told for text in texts]
        inputs += len(cases)
    return Report({"inputs": inputs}, tuple(wrong))
