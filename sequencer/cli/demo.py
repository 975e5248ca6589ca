"""`demo`: two processes share one run, as in two terminals, and one of them is killed.

It creates a project in a temporary folder. The agent is a small script that works for a moment
and writes a line into a file. Two real ``sequencer run`` processes take turns. One is killed in
the middle of a step and started again, and takes the step over. What is shown comes from the
journal of the run; at the end, the journal and the script's file are checked against the workflow.
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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import click

from sequencer.cli.context import Invocation
from sequencer.cli.options import pass_invocation, verb
from sequencer.cli.views.text import can_write, has_color, one_line, terminal_width, width
from sequencer.errors import StepFailed, UsageRefused
from sequencer.files.textfile import CONFIG_NAME
from sequencer.history.facts import EndState, RecordedFact, StartKind, list_facts, read_facts
from sequencer.model.outcome import format_duration
from sequencer.model.whole_numbers import MAX_COUNTER
from sequencer.project.project import open_project, open_run
from sequencer.store.identity import is_inside_agent
from sequencer.store.journal import JournalFile

POSITIONS = ("supervisor", "main")
COLORS = {"supervisor": "cyan", "main": "magenta"}
REVIEW_EVERY = 2
KILLED = 5
"""The number of the step during which its process is killed; with fewer steps, the last one."""
MAX_STEPS = 1_000
START_S = 45.0
"""Time limit in addition to the steps: three interpreters have to start on a busy machine."""
STEP_S = 5.0
"""Time limit of a step in addition to its own time."""
POLL_S = 0.02
END_S = 12.0
"""Seconds from TERM to KILL: a process first ends its agent cleanly, which takes up to 5 s."""

TWO_COLUMNS, MAX_COLUMNS = 80, 104
"""Minimum width for two terminals side by side, and maximum width of both together."""
FILES = files("sequencer").joinpath("builtin", "demo")
_WHAT = "Two processes take turns in one run. Every second cycle is a review."
_NEXT = """
In your own project:
  sequencer init && sequencer check
  sequencer run --mode sync --position supervisor     in one terminal
  sequencer run --mode sync --position main           in another"""
_KEPT = """
Look around:  cd {folder}
  sequencer status      sequencer history      sequencer log 1
  cat sync/state.json   ls logs/local/steps"""
_GONE = "'sequencer demo --keep' keeps the folder with its state, journal and logs."


@verb("demo", has_json=False)
@click.option(
    "--steps",
    type=click.IntRange(2, MAX_STEPS),
    metavar="N",
    default=6,
    show_default=True,
    help="Number of steps.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 60),
    metavar="S",
    default=0.4,
    show_default=True,
    help="How long each step takes.",
)
@click.option("--keep", is_flag=True, help="Keep the folder so that you can look around.")
@pass_invocation
def demo(invocation: Invocation, steps: int, seconds: float, keep: bool) -> None:
    """Watch two processes take turns; one is killed, starts again and takes its step over.

    A supervisor and a main process share one run, with a review every second cycle. You need
    no agent program and no key. The demo works in a temporary folder and removes it at the
    end.

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
            # Trusted before the run: later, another process may have changed the files.
            open_project(folder, config=folder / CONFIG_NAME, environment={}).trust.save_record()
        invocation.echo(_WHAT)
        start_s = time.monotonic()
        with _interrupt_on_signals():
            _Play(invocation, folder, steps, seconds).play()
        _show_result(invocation, folder, steps, time.monotonic() - start_s)
        is_kept = keep
        for line in ((_KEPT if keep else _GONE) + "\n" + _NEXT).split("\n"):
            invocation.echo(line.format(folder=folder))
    except KeyboardInterrupt:
        is_kept = keep
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _choose_killed_step(steps: int) -> int:
    """Return the index of the step during which its process is killed."""
    return min(steps, KILLED) - 1


def _write_project(folder: Path, steps: int, seconds: float) -> None:
    (folder / "prompts").mkdir()
    for entry in FILES.iterdir():
        name, text = Path(entry.name), entry.read_text(encoding="utf-8")
        if name.suffix == ".yaml":
            text = Template(text).substitute(
                every=REVIEW_EVERY,
                steps=steps,
                seconds=f"{seconds:g}",
                killed=_choose_killed_step(steps),
            )
        path = folder / ("prompts" if name.suffix == ".md" else "") / name
        path = path.with_suffix(".py") if name.suffix == ".txt" else path
        path.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Make TERM and HUP end the demo and its processes, as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        del number, frame
        raise KeyboardInterrupt

    old_handlers = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


class _Screen:
    """Shows the lines of two terminals side by side, or, without room, with their names in front.

    The start and the end of a line are written at different times: a step ends later.
    """

    def __init__(self, invocation: Invocation) -> None:
        """Find out what standard output can show."""
        room = terminal_width(sys.stdout)
        self._invocation = invocation
        self._half = min(room, MAX_COLUMNS) // 2 if room and room >= TWO_COLUMNS else 0
        """Width of the left terminal with the bar after it; 0: there is no room for two."""
        self._has_color = has_color(sys.stdout)
        has_unicode = sys.stdout is None or can_write(sys.stdout, "│…")
        self._bar, self._dots = ("│", "…") if has_unicode else ("|", "...")
        self._is_left = False
        self._used = 0
        """Width of the unfinished line; 0: there is none."""

    def write_headings(self, texts: Sequence[str]) -> None:
        """Write the command that was typed in each terminal."""
        for position, text in zip(POSITIONS, texts, strict=True):
            self._place_text(position, text, "", is_beside=position != POSITIONS[0])
        self.close()

    def write_line(self, position: str, text: str, style: str = "") -> None:
        """Write one line of the terminal at *position*."""
        self._place_text(position, text, style)
        self.close()

    def begin_line(self, position: str, text: str, style: str) -> None:
        """Start a line of the terminal at *position*: a step runs now."""
        self._place_text(position, f"{text} {self._dots} ", style)

    def end_line(self, text: str, style: str) -> None:
        """End the unfinished line; without one, do nothing."""
        if self._used:
            self._write(text, style)
            self.close()

    def close(self) -> None:
        """End an unfinished line without further text."""
        if self._used and self._half and self._is_left:
            self._write_bar()
        if self._used:
            self._invocation.write_colored("\n")
        self._used = 0

    def _place_text(self, position: str, text: str, style: str, *, is_beside: bool = False) -> None:
        """Start a line with *text*, or put *text* to the right of the unfinished line."""
        is_left = position == POSITIONS[0]
        if not (is_beside and self._half):
            self.close()
        self._is_left = is_left
        if not self._half:
            self._write(f"{position:>{max(map(width, POSITIONS))}} {self._bar} ")
        elif not is_left:
            self._write_bar()
            self._write(" ")
        self._write(text, style)

    def _write_bar(self) -> None:
        self._write(" " * max(self._half - 1 - self._used, 1) + self._bar)

    def _write(self, text: str, style: str = "") -> None:
        self._used += width(text)
        color, _, weight = style.partition(" ")
        if self._has_color and style:
            text = click.style(text, fg=color, bold=weight == "bold")
        self._invocation.write_colored(text)


class _Play:
    """Runs the two processes, and kills and restarts one of them."""

    def __init__(self, invocation: Invocation, folder: Path, steps: int, step_s: float) -> None:
        """Use the project in *folder*: *steps* steps of *step_s* each. Start nothing yet."""
        self._folder, self._step_s = folder, step_s
        self._limit_s = START_S + steps * (step_s + STEP_S)
        self._invocation, self._screen = invocation, _Screen(invocation)
        killed_step = _choose_killed_step(steps)
        self._victim = POSITIONS[killed_step % len(POSITIONS)]
        self._kill_mark = f"begin {killed_step}\n"
        """The line of the trace that shows that the step to kill is running."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # It is only read, so the limits for rotating it do not matter.
        self._journal = JournalFile(folder / "sync", MAX_COUNTER, 1)
        self._seen: tuple[int, int, int] | None = None
        """The journal's signature when it was last read."""
        self._revision = 0
        """The last record that was shown."""

    def play(self) -> None:
        """Run both processes until they end, and show what happens.

        Raises:
            StepFailed: a process failed, or the run took too long.
        """
        try:
            self._screen.write_headings(
                [f"$ {self._format_command(position)}" for position in POSITIONS]
            )
            for position in POSITIONS:
                self._start(position)
            self._follow_until(lambda: self._kill_mark in self._read_trace())
            # Show the step at work for as long as any other before its process is killed.
            self._follow_for(self._step_s)
            self._kill()
            self._follow_until(lambda: all(p.poll() is not None for p in self._processes.values()))
        finally:
            self._screen.close()
            _end(self._processes.values())
            self._journal.close()

    def _follow_until(self, condition: Callable[[], bool]) -> None:
        """Show what happens until *condition* is true."""
        deadline = time.monotonic() + self._limit_s
        while not condition():
            self._follow()
            self._ensure_healthy()
            if time.monotonic() > deadline:
                raise StepFailed(f"not done after {self._limit_s:.0f} s", where=str(self._folder))
            time.sleep(POLL_S)
        # The journal may have grown since it was last read.
        self._follow()
        self._ensure_healthy()

    def _follow_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._follow_until(lambda: time.monotonic() >= end)

    def _ensure_healthy(self) -> None:
        """Check that no process has failed; the other process would wait for it forever.

        Raises:
            StepFailed: a process has failed.
        """
        for position, process in self._processes.items():
            if process.poll():
                output = self._output_path(position)
                lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
                errors = [text for line in lines if (text := one_line(line)).startswith("error: ")]
                raise StepFailed(
                    f"a process of the demo ended: {position} with exit code {process.returncode}",
                    where=str(output),
                    hint=f"it said: {errors[-1]}" if errors else None,
                )

    def _kill(self) -> None:
        """Kill the victim as ``kill -9`` does, and start it again."""
        process = self._processes[self._victim]
        process.kill()
        process.wait()
        self._screen.end_line("killed by kill -9", "red bold")
        survivor = next(position for position in POSITIONS if position != self._victim)
        self._screen.write_line(survivor, "waits: the step is not done")
        self._screen.write_line(self._victim, f"$ {self._format_command(self._victim)}")
        self._start(self._victim)

    def _format_command(self, position: str) -> str:
        return f"sequencer run --position {position}"

    def _output_path(self, position: str) -> Path:
        return self._folder / f"{position}.txt"

    def _read_trace(self) -> str:
        try:
            return (self._folder / "trace.txt").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _start(self, position: str) -> None:
        argv = [
            *(sys.executable, "-P", "-c", "from sequencer.cli import main; main()"),
            *("run", "--position", position),
            *("--config", str(self._folder / CONFIG_NAME)),
        ]
        # SEQUENCER_ variables of the shell must not change the demo's settings.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEQUENCER_")}
        environment |= {"SEQUENCER_TRUST": str(self._folder)}
        with self._output_path(position).open("ab") as output:
            self._processes[position] = subprocess.Popen(  # noqa: S603 - our own program
                argv,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _follow(self) -> None:
        """Show the facts of the journal that were not shown yet."""
        if (signature := self._journal.signature()) == self._seen:
            return
        self._seen = signature
        for record in self._journal.read_records(self._revision):
            self._revision = record.revision
            for fact in read_facts(list_facts(record.data)):
                self._show_fact(fact)

    def _show_fact(self, fact: RecordedFact) -> None:
        index, meaning = fact.step_index, fact.meaning
        position, label = POSITIONS[index % len(POSITIONS)], f"[{index + 1}]"
        if meaning.starts is StartKind.ATTEMPT and fact.attempt == 1:
            self._screen.begin_line(position, f"{label} {fact.step}", COLORS[position])
        elif meaning.ends is EndState.LOST:
            self._screen.begin_line(position, f"{label} taken over", "yellow bold")
        elif meaning.ends is EndState.DONE:
            duration = format_duration(fact.details["usage"]["seconds"])
            self._screen.end_line(f"accepted, {duration}", "green")


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End all *processes*, even if Ctrl-C is pressed again in the meantime."""
    live_processes = [process for process in processes if process.poll() is None]
    for process in live_processes:
        process.terminate()
    deadline = time.monotonic() + END_S
    for process in live_processes:
        while process.poll() is None:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
            except KeyboardInterrupt:
                # The second Ctrl-C: don't wait until processes have ended their agents.
                deadline = 0.0


def _show_result(invocation: Invocation, folder: Path, steps: int, took_s: float) -> None:
    """Check the journal and the agent's trace against the workflow, and show the result.

    Raises:
        StepFailed: the order differs from the workflow, or two steps overlapped, or the step
            whose process was killed was not taken over.
    """
    run = open_run(folder, environment={})
    ends = [(fact.meaning.ends, fact) for fact in read_facts(run.history())]
    order = [(fact.step_index, fact.step) for ending, fact in ends if ending is EndState.DONE]
    expected_steps = [(entry.step_index, entry.step) for entry in run.next(steps, 0)]
    lost_indexes = [fact.step_index for ending, fact in ends if ending is EndState.LOST]
    trace = (folder / "trace.txt").read_text(encoding="utf-8").splitlines()
    killed_index = _choose_killed_step(steps)
    expected_trace = [f"{word} {index}" for index in range(steps) for word in ("begin", "end")]
    expected_trace.insert(expected_trace.index(f"begin {killed_index}"), f"begin {killed_index}")
    if order != expected_steps or trace != expected_trace or lost_indexes != [killed_index]:
        facts = ", ".join(map(json.dumps, (order, lost_indexes, trace)))
        raise StepFailed(
            f"the order is wrong: {facts}",
            where=str(folder),
        )
    number = killed_index + 1
    invocation.echo("")
    invocation.echo(f"The journal: {steps} steps, each accepted once, in the workflow's order.")
    invocation.echo(
        f"The agent's trace: step {number} started twice, no two steps overlapped. {took_s:.1f} s."
    )
