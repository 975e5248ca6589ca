"""Shows the work while steps run: a live line on a terminal, plain lines elsewhere.

Both write to standard error. A terminal that is slow, closed or gone never makes a step fail and
hardly slows it down. Output that can't be shown in time, or that exceeds `BYTES_PER_S`, is counted
and left out.

Not promised: that all output of an agent is shown. The step log has all of it.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from msgspec import Struct, field

from sequencer.cli.context import relativize_paths, show_safe_message, write_to_stderr
from sequencer.cli.unattended import Log
from sequencer.cli.views.text import (
    Sanitizer,
    file_size,
    format_clock,
    one_line,
    pluralize,
    width,
    wrap_prose,
)
from sequencer.engine.attempt import Attempt
from sequencer.engine.events import (
    AttemptAccepted,
    AttemptElsewhere,
    AttemptEnded,
    AttemptStarted,
    AttemptUsed,
    AttemptWrote,
    NoticeGiven,
    RunEvent,
    Waiting,
)
from sequencer.engine.invocation_budget import Summary
from sequencer.engine.run import Run
from sequencer.errors import SequencerError, StateRefused
from sequencer.executors.protocol import Piece
from sequencer.executors.redaction import Redaction
from sequencer.history.words import format_time
from sequencer.model.evidence import format_evidence
from sequencer.model.outcome import Outcome, Usage, format_duration, format_usage

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

BYTES_PER_S = 512 * 1024
BURST_BYTES = 1024 * 1024
LINE_CHARS = 4096
"""A longer line is shown in pieces."""
LAST_CHARS = 200


class FeedLine(Struct, frozen=True):
    """One line to show, without its line end."""

    kind: Piece
    text: str


class Feed:
    """Turns the chunks of one attempt into lines."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        redaction: Redaction | None = None,
    ) -> None:
        """Start with a full allowance; *clock* returns seconds, *redaction* knows the secrets."""
        self._clock = clock
        self._redaction = redaction or Redaction()
        self._kind = Piece.OUTPUT
        self._unfinished = ""
        self._hidden = 0
        self._is_mid_line = False
        self._allowance = float(BURST_BYTES)
        self._refilled = clock()
        self.last = ""
        """The newest line that is not blank; it may be unfinished."""
        self._restart()

    def _restart(self) -> None:
        """Start decoding again, at the start of the output or after a gap."""
        self._sanitiser = Sanitizer()
        self._stream = self._redaction.start_stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add_output(self, data: bytes, kind: Piece, *, has_room: bool = True) -> list[FeedLine]:
        """Return the lines that *data* completes; without *has_room*, *data* is left out."""
        lines = [] if kind is self._kind else self._flush_unfinished()
        self._kind = kind
        data = self._skip_gap(data)
        if not data:
            return lines
        if not (has_room and self._try_spend(len(data))):
            self._leave_out(data)
            return lines
        if self._hidden:
            lines += self._gap_lines()
        return lines + self._split(data)

    def finish(self) -> list[FeedLine]:
        """Return the rest of the output; the next chunk belongs to another attempt."""
        return [*self._flush_unfinished(), *self._gap_lines()]

    def _leave_out(self, data: bytes) -> None:
        if not self._hidden:
            # Text that is held back may be the start of a secret that ends in the gap.
            self._restart()
        self._hidden += len(data)
        self._is_mid_line = not data.endswith(b"\n")

    def _skip_gap(self, data: bytes) -> bytes:
        """Return the part of *data* to show, without the rest of the line after a gap.

        That line may start in the middle of a secret.
        """
        if not (self._hidden and self._is_mid_line):
            return data
        skipped_bytes, newline, rest = data.partition(b"\n")
        self._leave_out(skipped_bytes + newline)
        return rest

    def _try_spend(self, count: int) -> bool:
        """Take *count* bytes from the token bucket; return whether it had that many."""
        now = self._clock()
        new_bytes = (now - self._refilled) * BYTES_PER_S
        self._allowance = min(self._allowance + new_bytes, float(BURST_BYTES))
        self._refilled = now
        # After a gap, wait for a quarter of the allowance, so that few gap notices are printed.
        needed_bytes = max(count, BURST_BYTES // 4) if self._hidden else count
        if needed_bytes > self._allowance:
            return False
        self._allowance -= count
        return True

    def _split(self, data: bytes, *, is_end: bool = False) -> list[FeedLine]:
        text = self._sanitiser.finish() if is_end else self._sanitiser.feed(data)
        # Secrets are hidden after the sanitiser, because it may join the halves of a secret, and
        # for all lines at once, because line by line is slower than the agent writes.
        stable_bytes = self._stream.feed(text.encode("utf-8", "replace"))
        if is_end:
            stable_bytes += self._stream.finish()
        *lines, self._unfinished = (self._unfinished + self._decoder.decode(stable_bytes)).split(
            "\n"
        )
        while len(self._unfinished) > LINE_CHARS:
            lines.append(self._unfinished[:LINE_CHARS])
            self._unfinished = self._unfinished[LINE_CHARS:]
        last_line = next((t for t in (self._unfinished, *reversed(lines)) if t.strip()), None)
        if last_line is not None:
            self.last = last_line.strip()[-LAST_CHARS:]
        return [FeedLine(self._kind, line) for line in lines]

    def _flush_unfinished(self) -> list[FeedLine]:
        """Return the unfinished line as a line: another kind of output follows, or none."""
        lines = self._split(b"", is_end=True)
        if self._unfinished:
            lines.append(FeedLine(self._kind, self._unfinished))
            self._unfinished = ""
        return lines

    def _gap_lines(self) -> list[FeedLine]:
        """Return the notice about left-out output, if there is any."""
        if not self._hidden:
            return []
        note = f"[{file_size(self._hidden)} of output is not shown; it goes to the step log]"
        self._hidden = 0
        return [*self._flush_unfinished(), FeedLine(Piece.NOTICE, note)]


REDRAW_S = 0.1
TICK_S = 1.0
CLOCK_COLUMNS = 12
"""Columns at the end of the live line for its age."""
CLOSE_S = 2.0
"""Seconds that `close` waits for a terminal that accepts no output."""
PIECE_LINES = 50
"""Lines printed at once. `close` sees by these pieces whether a slow terminal makes progress."""
MAX_HELD_CHARS = 2 * 1024 * 1024
STYLES = {Piece.THOUGHT: "dim", Piece.ACTION: "dim", Piece.ERROR: "red", Piece.NOTICE: "cyan"}


def make_progress_view(redaction: Redaction) -> PlainProgress:
    """Return the view for standard error: live on a terminal, else plain lines.

    *redaction* knows the project's secrets.
    """
    # Standard error may be a file, for example with cron.
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    if is_terminal and os.environ.get("TERM", "dumb") != "dumb":
        return LiveProgress(redaction)
    return PlainProgress(redaction)


def _format_label(attempt: Attempt) -> str:
    return _format_place(attempt.step_index, attempt.step.name)


def _format_place(step_index: int, step: str) -> str:
    return f"[{step_index + 1}] {one_line(step)}"


def start_line(attempt: Attempt, log: str) -> str:
    """Return the line that says that *attempt* has started."""
    note = f", attempt {attempt.number}" if attempt.number > 1 else ""
    place = "" if attempt.position == attempt.step.name else f" at position {attempt.position}"
    prompt = attempt.step.prompt_name
    text = f"{_format_label(attempt)}{place}: {attempt.agent} with {prompt}{note}, log {log}"
    return one_line(text)


def end_line(attempt: Attempt, outcome: Outcome, verdict: str = "") -> str:
    """Return the line that says how *attempt* ended; a later line says whether it is accepted.

    For a step that judges, it shows the *verdict*: "no" is not a failure of the judge.
    """
    return f"{_format_label(attempt)}: {_describe_end(outcome, 'ended', verdict)}"


def accepted_line(attempt: Attempt) -> str:
    """Return the line that says that the run has recorded *attempt* as an accepted step."""
    return f"{_format_label(attempt)}: accepted"


def remote_attempt_line(event: AttemptElsewhere) -> str:
    """Return the line about an attempt that another process makes."""
    label = _format_place(event.step_index, event.step)
    if event.outcome is not None:
        return one_line(f"{label}: {_describe_end(event.outcome, 'accepted')}, by {event.by}")
    note = f", attempt {event.attempt}" if event.attempt > 1 else ""
    return one_line(f"{label}: made by {event.by}{note}, which has its log")


def _describe_end(outcome: Outcome, success_word: str, verdict: str = "") -> str:
    """Return in words how an attempt ended; *success_word* is the verb for an accepted outcome."""
    figures = ", ".join(
        filter(None, (format_duration(outcome.usage.seconds), format_usage(outcome.usage)))
    )
    result = f"{success_word if outcome.is_accepted else outcome.status} after"
    text = f"{f'{one_line(verdict)} ·' if verdict else result} {figures}"
    if evidence := format_evidence(outcome.evidence):
        text += f"; {evidence}"
    if outcome.denials:
        text += f"; {len(outcome.denials)} tool calls were refused by the agent's permissions"
    return text


_FOR = "waiting for "


def waiting_line(reason: str, until: str | None) -> str:
    """Return the line that says why nothing runs now."""
    if until:
        date = format_time(until)
        reason = reason.replace(until, date) if until in reason else f"{reason} (until {date})"
    return one_line(reason if reason.startswith(_FOR) else f"waiting: {reason}")


def prefix_time(line: str) -> str:
    """Return *line* with the time of day before it, for a person who comes back to a terminal.

    The log of a timer adds the time to every line itself.
    """
    if isinstance(getattr(getattr(sys.stderr, "buffer", None), "raw", None), Log):
        return line
    return f"{time.strftime('%H:%M:%S')} {line}"


class WorkCount(Struct):
    """Counts the work of this process, for a summary if it ends with an error."""

    usage: Usage = field(default_factory=Usage)
    failures: int = 0
    noticed: bool = False
    """Whether something was restored or edited, so that the next tick may find more to do."""
    _accepted_last: bool = False
    _under_way: int = 0
    """Attempts that this process has started and that have not ended."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: RunEvent) -> None:
        """Count *event*."""
        match event:
            case AttemptStarted():
                with self._lock:
                    self._under_way += 1
                    self._accepted_last = False
            case AttemptEnded(_, outcome) | AttemptElsewhere(outcome=Outcome() as outcome):
                with self._lock:
                    self._under_way -= isinstance(event, AttemptEnded)
                    self._accepted_last = outcome.is_accepted
                    steps = int(outcome.is_accepted)
                    self.usage = self.usage.plus(outcome.usage, steps=steps)
                    self.failures += int(outcome.status == "failed")
            case NoticeGiven():
                self.noticed = True
            case _:
                pass

    def is_working(self) -> bool:
        """Return whether an attempt of this process is running."""
        return self._under_way > 0

    def summarize(self, error: SequencerError) -> Summary:
        """Return the summary of the work before *error*."""
        usage = self.usage
        if isinstance(error, StateRefused) and self._accepted_last:
            # The agent succeeded, but the store refused its result.
            usage = usage.replace(steps=usage.steps - 1)
        return Summary(error.message, usage, self.failures)


class QuietProgress:
    """A view that shows only waits that need a person."""

    def __call__(self, event: RunEvent) -> None:
        """Show *event* if it is such a wait."""
        if isinstance(event, Waiting) and event.needs_person:
            show_safe_message(waiting_line(event.reason, event.until))

    def close(self) -> None:
        """Do nothing."""


class PlainProgress:
    """A view of plain lines, for logs, pipes and emails from cron."""

    def __init__(self, redaction: Redaction) -> None:
        """Write to standard error, with the secrets that *redaction* knows hidden."""
        self._redaction = redaction
        self._feed = Feed(redaction=redaction)
        self._attempt: Attempt | None = None
        self._waiting: str | None = None

    def __call__(self, event: RunEvent) -> None:
        """Show *event*."""
        match event:
            case AttemptWrote(_, data, kind):
                self._show_output(self._feed.add_output(data, kind, has_room=self._has_room()))
            case AttemptStarted(attempt, log):
                self._feed = Feed(redaction=self._redaction)
                self._attempt, self._waiting = attempt, None
                self._show_text(Piece.NOTICE, prefix_time(start_line(attempt, log)))
            case AttemptEnded(attempt, outcome, verdict):
                self._show_output(self._feed.finish())
                self._attempt = None
                kind = Piece.NOTICE if outcome.is_accepted else Piece.ERROR
                self._show_text(kind, prefix_time(end_line(attempt, outcome, verdict)))
            case AttemptAccepted(attempt):
                self._show_text(Piece.NOTICE, prefix_time(accepted_line(attempt)))
            case AttemptElsewhere(outcome=outcome):
                is_well = outcome is None or outcome.is_accepted
                kind = Piece.NOTICE if is_well else Piece.ERROR
                self._show_text(kind, prefix_time(remote_attempt_line(event)))
            case NoticeGiven(text):
                self._show_text(Piece.NOTICE, f"notice: {text}")
            case Waiting(reason, deadline):
                self._show_wait(waiting_line(reason, deadline))
            case _:
                pass

    def close(self) -> None:
        """Do nothing."""

    def _has_room(self) -> bool:
        return True

    def _show_output(self, lines: list[FeedLine]) -> None:
        if lines:
            write_to_stderr("\n".join(line.text for line in lines))

    def _show_text(self, kind: Piece, text: str) -> None:
        del kind
        show_safe_message(text)

    def _show_wait(self, line: str) -> None:
        # The work may wait in many rounds, but one line about the wait is enough.
        if line != self._waiting:
            self._waiting = line
            show_safe_message(line)


class Painter(ABC):
    """Draws on a terminal from its own thread, which starts with the first event.

    So neither a slow redraw nor a terminal that accepts no output blocks the agent or the work.
    """

    def __init__(self, stream: TextIO, *, pause_s: float) -> None:
        """Draw to *stream*, at most once every *pause_s* seconds."""
        from rich.console import Console  # noqa: PLC0415 - only where there is a terminal

        # A separate file, and so a separate lock: when the interpreter ends, it flushes standard
        # error, and would wait for a painter that is blocked by its terminal.
        self._screen = os.fdopen(
            os.dup(stream.fileno()), "w", encoding=stream.encoding, errors=stream.errors
        )
        self._console = Console(
            file=self._screen, highlight=False, markup=False, emoji=False, force_terminal=True
        )
        self._pause_s = pause_s
        self._painted = 0
        """Number of pieces that the terminal has taken."""
        self._lock = threading.Lock()
        self._changed, self._closing = threading.Event(), threading.Event()
        self._live: Live | None = None
        self._thread: threading.Thread | None = None

    def _request_draw(self) -> None:
        """Draw again soon. The caller must not hold the lock."""
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._paint, name="painter", daemon=True)
                self._thread.start()
        self._changed.set()

    def _paint(self) -> None:
        try:
            while not self._closing.is_set():
                self._changed.wait(self._redraw_delay_s())
                self._changed.clear()
                self._draw()
                self._closing.wait(self._pause_s)
            self._draw()
            if self._live is not None:
                self._live.stop()
        except (OSError, ValueError):
            # The terminal is gone; the steps continue without it.
            self._closing.set()
        finally:
            # Closed by this thread: closing may block as long as the terminal accepts no output.
            self._close_screen()

    def _close_screen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._screen.close()

    def _show(self, bottom: Text, *, is_transient: bool) -> None:
        """Draw *bottom* in place of what was drawn there before."""
        from rich.live import Live  # noqa: PLC0415 - loaded with the console

        if self._live is None:
            self._live = Live(
                bottom,
                console=self._console,
                auto_refresh=False,
                transient=is_transient,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(bottom, refresh=True)

    @abstractmethod
    def _redraw_delay_s(self) -> float | None:
        """Return the seconds after which it is drawn again without an event; None: never."""

    @abstractmethod
    def _draw(self) -> None:
        """Draw the current state on the terminal."""

    def close(self) -> None:
        """Draw the final state, and leave the terminal as it was.

        It waits as long as the terminal makes progress; after `CLOSE_S` without any, it returns.
        """
        self._closing.set()
        self._changed.set()
        paint_count = -1
        while self._thread is not None and self._thread.is_alive() and paint_count != self._painted:
            paint_count = self._painted
            self._thread.join(CLOSE_S)
        if self._thread is None:
            self._close_screen()


class LiveProgress(Painter, PlainProgress):
    """A view with a live line at the bottom, and the output of agents above it."""

    def __init__(self, redaction: Redaction) -> None:
        """Draw on the terminal, with the secrets that *redaction* knows hidden."""
        Painter.__init__(self, sys.stderr, pause_s=REDRAW_S)
        PlainProgress.__init__(self, redaction)
        self._lines: list[FeedLine] = []
        self._held_chars = 0
        self._since = time.monotonic()
        self._usage = Usage()

    def __call__(self, event: RunEvent) -> None:
        """Show *event*."""
        with self._lock:
            if isinstance(event, AttemptUsed):
                self._usage = event.usage
            if isinstance(event, AttemptStarted):
                self._since, self._usage = time.monotonic(), Usage()
            PlainProgress.__call__(self, event)
        self._request_draw()

    def _has_room(self) -> bool:
        # A terminal may be stopped (Ctrl-S) for hours, so the waiting output is bounded.
        return self._held_chars < MAX_HELD_CHARS

    def _show_output(self, lines: list[FeedLine]) -> None:
        self._lines += lines
        self._held_chars += sum(len(line.text) for line in lines)

    def _show_text(self, kind: Piece, text: str) -> None:
        self._lines.append(
            FeedLine(kind, wrap_prose(relativize_paths(one_line(text)), self._console.width))
        )

    def _show_wait(self, line: str) -> None:
        if self._waiting is None:
            self._since = time.monotonic()
        is_cut = width(line) + CLOCK_COLUMNS > self._console.width
        if is_cut and line != self._waiting:
            # The end that is cut off may be a command to type: show it in full, once.
            reason, separator, command = line.rpartition(": sequencer ")
            text = f"{reason}:\n  sequencer {command}" if separator else line
            self._lines.append(FeedLine(Piece.NOTICE, wrap_prose(text, self._console.width)))
        self._waiting = line

    def _redraw_delay_s(self) -> float:
        return TICK_S

    def _draw(self) -> None:
        from rich.text import Text  # noqa: PLC0415 - loaded with the console

        with self._lock:
            lines, self._lines, self._held_chars = self._lines, [], 0
            attempt, waiting = self._attempt, self._waiting
            elapsed, last, usage = time.monotonic() - self._since, self._feed.last, self._usage
        bottom = Text(no_wrap=True, overflow="ellipsis", end="")
        if attempt is not None:
            bottom.append(_format_label(attempt), style="bold")
            parts = (one_line(attempt.agent), format_clock(elapsed), format_usage(usage))
            bottom.append("".join(f" · {part}" for part in parts if part))
            bottom.append(f" · {one_line(last)}" if last else "", style="dim")
        elif waiting is not None:
            bottom.append(f"{waiting} · {format_clock(elapsed)}", style="dim")
        for start in range(0, len(lines), PIECE_LINES):
            piece = lines[start : start + PIECE_LINES]
            texts = (Text(line.text, style=STYLES.get(line.kind, "")) for line in piece)
            self._console.print(Text("\n").join(texts), soft_wrap=True)
            self._painted += 1
        self._show(bottom, is_transient=True)


def summary_line(summary: Summary) -> str:
    """Return one line that says how the work ended and what was used."""
    usage = summary.usage
    parts = [summary.reason]
    if usage.steps or summary.failures or usage.seconds:
        failure_count = f"{summary.failures} failed" if summary.failures else ""
        steps = pluralize(usage.steps, "step")
        is_in_reason = any(words in f" {summary.reason} " for words in (" steps ", " 1 step "))
        figures = (
            "" if is_in_reason else steps,
            failure_count,
            format_usage(usage),
            format_duration(usage.seconds),
        )
        parts += filter(None, figures)
    return one_line(" · ".join(parts))


def summary_json(run: Run, summary: Summary, exit_code: int) -> dict[str, Any]:
    """Return the object that ``--json`` prints at the end."""
    usage, head, names = summary.usage, summary.head, ("step_index", "status", "expected_step")
    return {
        "reason": summary.reason,
        "exit_code": exit_code,
        "run": run.name,
        "steps": usage.steps,
        "failures": summary.failures,
        "cost_usd": usage.known_usd,
        "unpriced": usage.unpriced,
        "estimated_usd": usage.estimated_usd,
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
        "seconds": usage.seconds,
        "head": None if head is None else {name: getattr(head, name) for name in names},
    }
