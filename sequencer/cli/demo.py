"""`demo`: two processes, as in two terminals, share one run without an agent.

A scratch folder gets a project whose agent is a small script: it works for a moment and
writes a line into a file. Two real ``sequencer run --mode sync`` processes take turns there.
The proof comes from the journal of the run and from the script's file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import plain
from sequencer.documents.textfile import CONFIG_NAME
from sequencer.errors import StepFailed, StorageFailed, UsageRefused
from sequencer.project.project import open_project, open_run
from sequencer.store.identity import is_inside_agent
from sequencer.store.journal import JournalFile

POSITIONS = ("supervisor", "main")
REVIEW_EVERY = 2
MAX_STEPS = 1_000
START_S = 30.0
"""In addition to the steps: for two interpreters on a busy machine."""
STEP_S = 5.0
POLL_S = 0.02
END_S = 12.0
"""From TERM to KILL: a process first ends its agent cleanly, which takes up to 5 s."""

READER_S = 5.0
FILES = files("sequencer").joinpath("builtin", "demo")
_NEXT = """
in your own project:
  sequencer init && sequencer check
  sequencer run --mode sync --position supervisor     in one terminal
  sequencer run --mode sync --position main           in another"""
_KEPT = """
look around:  cd {folder}
  sequencer status      sequencer history      sequencer log 1
  cat sync/state.json   ls logs/local/steps"""
_GONE = "'sequencer demo --keep' keeps the folder with its state, journal and logs"
Children = list[tuple[str, "subprocess.Popen[bytes]", threading.Thread]]
"""Each process with its position and the thread that shows its output."""


@verb("demo", has_json=False)
@click.option(
    "--steps",
    type=click.IntRange(2, MAX_STEPS),
    metavar="N",
    default=8,
    show_default=True,
    help="Number of steps.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 60),
    metavar="S",
    default=0.2,
    show_default=True,
    help="How long each step takes.",
)
@click.option("--keep", is_flag=True, help="Keep the folder so that you can look around.")
@pass_invocation
def demo(invocation: Invocation, steps: int, seconds: float, keep: bool) -> None:
    """Watch a supervisor and a main process take turns, with a review every second cycle.

    You need no agent program and no key. The demo works in a temporary folder and removes
    it at the end.

    \b
    Examples:
      sequencer demo
      sequencer demo --steps 12 --keep
    """
    if invocation.config is not None or invocation.run_name is not None:
        raise UsageRefused("demo makes its own project, so --config and --run don't apply")
    folder = Path(tempfile.mkdtemp(prefix="sequencer-demo-"))
    is_kept = True
    try:
        _write_project(folder, steps, seconds)
        if keep and not is_inside_agent():
            # Now, and no other file: what is there in the end was perhaps changed by others.
            open_project(folder, config=folder / CONFIG_NAME, environment={}).trust.keep()
        invocation.echo(f"two processes share one run in {folder}")
        started = time.monotonic()
        with _ending_on_signals():
            _run_both(invocation, folder, START_S + steps * (seconds + STEP_S))
        took = time.monotonic() - started
        _show(invocation, folder, steps, took)
        is_kept = keep
        for line in ((_KEPT if keep else _GONE) + "\n" + _NEXT).split("\n"):
            invocation.echo(line.format(folder=folder))
    except KeyboardInterrupt:
        is_kept = keep
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _write_project(folder: Path, steps: int, seconds: float) -> None:
    (folder / "prompts").mkdir()
    for entry in FILES.iterdir():
        name, text = Path(entry.name), entry.read_text(encoding="utf-8")
        if name.suffix == ".yaml":
            values = {"every": REVIEW_EVERY, "steps": steps, "seconds": f"{seconds:g}"}
            text = Template(text).substitute(values)
        path = folder / ("prompts" if name.suffix == ".md" else "") / name
        path = path.with_suffix(".py") if name.suffix == ".txt" else path
        path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Make TERM and HUP end the demo and its processes, as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_both(invocation: Invocation, folder: Path, limit_s: float) -> None:
    """Run both processes to their end.

    Raises:
        StepFailed: one of them failed, or took longer than *limit_s*.
    """
    children: Children = []
    deadline = time.monotonic() + limit_s
    try:
        for position in POSITIONS:
            children.append(_started(invocation, folder, position))
        # If one fails, the other would wait for it forever.
        while any(one.poll() is None for _, one, _ in children) and not _failed(children):
            if time.monotonic() > deadline:
                raise StepFailed(f"not done after {limit_s:.0f} s", where=str(folder))
            time.sleep(POLL_S)
    finally:
        failed = _failed(children)
        _end(children)
    if failed:
        raise StepFailed(f"a process of the demo ended: {', '.join(failed)}", where=str(folder))


def _failed(children: Children) -> list[str]:
    """Return words for the processes that ended with an error."""
    return [
        f"{position} with exit code {one.returncode}" for position, one, _ in children if one.poll()
    ]


def _started(
    invocation: Invocation, folder: Path, position: str
) -> tuple[str, subprocess.Popen[bytes], threading.Thread]:
    argv = [
        *(sys.executable, "-P", "-c", "from sequencer.cli import main; main()"),
        *("run", "--mode", "sync", "--position", position),
        *("--config", str(folder / "orchestration.yaml")),
    ]
    # Settings in your shell would otherwise apply to the demo too.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SEQUENCER_")}
    environment |= {"PYTHONUNBUFFERED": "1", "SEQUENCER_TRUST": str(folder)}
    process = subprocess.Popen(  # noqa: S603 - our own program and a folder that we made
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    relay = (invocation, process, position)
    reader = threading.Thread(target=_relay, args=relay, name=f"demo-{position}", daemon=True)
    reader.start()
    return position, process, reader


def _relay(invocation: Invocation, process: subprocess.Popen[bytes], position: str) -> None:
    label = f"{position:>{max(map(len, POSITIONS))}} | "
    if process.stdout is None:
        return
    with process.stdout as lines:
        for line in lines:
            text = plain(line.decode("utf-8", "replace")).rstrip()
            # Nobody reads anymore: still empty the pipe so that the process can end.
            with contextlib.suppress(OSError, StorageFailed):
                invocation.echo(label + text)


def _end(children: Children) -> None:
    """Leave no process behind, whatever happens in the meantime."""
    for _, process, _ in children:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + END_S
    for _, process, reader in children:
        while process.poll() is None:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
            except KeyboardInterrupt:
                # The second Ctrl-C: don't wait for processes that wait for their agents.
                deadline = 0.0
        reader.join(READER_S)


def _show(invocation: Invocation, folder: Path, steps: int, took_s: float) -> None:
    """Show the order from the journal, and compare it with what the workflow says.

    Raises:
        StepFailed: the order differs from the workflow, or two steps overlapped.
    """
    run = open_run(folder, environment={})
    facts = [fact for fact in run.history() if fact["event"] == "succeeded"]
    order = [(fact["step_index"], fact["step"]) for fact in facts]
    wanted = [(entry["step_index"], entry["step"]) for entry in run.next(steps, 0)]
    invocation.echo("")
    invocation.echo("what ran, from the journal:")
    for fact in facts:
        iteration = fact["step_index"] + 1
        invocation.echo(f"  iteration {iteration:>3}  {fact['step']:<10}  token {fact['token']}")
    trace = (folder / "trace.txt").read_text(encoding="utf-8").splitlines()
    in_turn = [f"{word} {index}" for index in range(steps) for word in ("begin", "end")]
    if order != wanted or trace != in_turn:
        raise StepFailed(
            f"the order is wrong: {json.dumps(order)}, {json.dumps(trace)}", where=str(folder)
        )
    journal = JournalFile(run.store.state_path.parent, 2**40, 1)
    claims = (claim for record in journal.records() for claim in record.data["head"]["claims"])
    owners = {claim["owner"]["pid"] for claim in claims if claim["step_index"] < steps}
    invocation.echo(
        f"strict order: {steps} steps, each accepted once, in the order of the workflow; the "
        "agent's trace shows that each step ended before the next started"
    )
    invocation.echo(f"{len(owners)} processes took turns; {took_s:.1f} s in total")
