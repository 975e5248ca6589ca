"""`log`: show the step logs of the run, or follow the newest log while it is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import click

from sequencer.cli.context import Invocation, relativize_paths
from sequencer.cli.options import complete_steps, pass_invocation, verb
from sequencer.cli.views.step_logs import FoundLog, RequestedLogs, open_log, read_mtime_ns
from sequencer.cli.views.text import Sanitizer, one_line
from sequencer.engine.logs import read_log_token, read_sent_texts
from sequencer.files.textfile import slug
from sequencer.store.watch import watch

DEFAULT_LOGS = 3
NONE = "there is no such step log yet in"
DEFAULT_LINES = 40


@verb("log")
@click.argument("steps", nargs=-1, metavar="[STEP]...", shell_complete=complete_steps)
@click.option(
    "-f", "--follow", is_flag=True, help="Keep running, and show new lines as they are written."
)
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=DEFAULT_LOGS,
    show_default=True,
    metavar="N",
    help="Show the N newest logs; -f shows one before it follows.",
)
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=DEFAULT_LINES,
    show_default=True,
    metavar="L",
    help="Show only the last L lines of each log; 0 shows all lines.",
)
@click.option("--path", is_flag=True, help="Print the paths of the logs instead.")
@click.option("--prompt", is_flag=True, help="Print the prompts as they were sent instead.")
@pass_invocation
def log(
    invocation: Invocation,
    /,
    *,
    steps: tuple[str, ...],
    follow: bool,
    count: int,
    lines: int,
    path: bool,
    prompt: bool,
) -> None:
    """Show the newest step logs, in order.

    STEP is the name of a step or the number of an iteration. -f follows the log that is
    being written, then the next step's log; Ctrl-C ends it.

    \b
    Examples:
      sequencer log
      sequencer log -f
      sequencer log supervisor -n 1 --lines 0
      sequencer log 12 13 --path
      sequencer log 12 --prompt
    """
    flags = {"--path": path, "--prompt": prompt, "--json": invocation.is_json}
    flag_names = [option for option, is_given in flags.items() if is_given]
    other_names = [name for name in flag_names if name != "--prompt"]
    if follow and flag_names:
        raise click.UsageError(f"-f and {flag_names[0]} can't be used together")
    if prompt and other_names:
        raise click.UsageError(f"--prompt and {other_names[0]} can't be used together")
    project = invocation.project()
    run = invocation.run() if follow else invocation.run_to_show()
    request = RequestedLogs(project, run, steps, count=count, lines=lines)
    if follow:
        follow_logs(invocation, request)
    else:
        show_logs(invocation, request, only_paths=path, only_prompts=prompt)


CHUNK_BYTES = 64 * 1024
TAIL_BYTES = 1024 * 1024
"""Maximum bytes to search for the last lines of a log: lines can be very long."""
RECHECK_S = 5.0
MAX_WATCHED = 8
"""Maximum number of folders to watch in addition to the folder of the next log."""


class Printer:
    """Writes logs to standard output: made safe for a terminal, otherwise unchanged bytes."""

    def __init__(self) -> None:
        """Find out whether standard output is a terminal."""
        self._is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self._sanitiser = Sanitizer()

    def write_title(self, log: FoundLog, note: str = "") -> None:
        """Write a heading that names *log*."""
        title = relativize_paths(one_line(f"==> {os.fsdecode(log.path)} <=={note}"))
        self._write_raw(f"{title}\n".encode())

    def write(self, data: bytes) -> None:
        """Write a part of the log."""
        self._write_raw(self._sanitiser.feed(data).encode() if self._is_terminal else data)

    def end(self) -> None:
        """End the current log."""
        self._write_raw(self._sanitiser.finish().encode())

    @staticmethod
    def _write_raw(data: bytes) -> None:
        if sys.stdout is not None:
            sys.stdout.buffer.write(data)
            sys.stdout.flush()


def show_logs(
    invocation: Invocation, asked: RequestedLogs, *, only_paths: bool, only_prompts: bool
) -> None:
    """Print the newest requested logs, only their paths, or only the prompts that were sent."""
    asked.ensure_known()
    logs = asked.find_logs()[-asked.count :]
    if not logs:
        invocation.notify(f"{NONE} {asked.folders[0]}")
    _report_logs_elsewhere(invocation, asked)
    if invocation.is_json or only_paths:
        for log in logs:
            if not invocation.is_json:
                invocation.echo(str(log.path))
                continue
            facts = {"path": str(log.path), "iteration": log.iteration}
            facts |= {"step_index": log.iteration - 1, "step": log.step, "attempt": log.attempt}
            invocation.print_json({**facts, "bytes": log.path.lstat().st_size})
        return
    printer = Printer()
    for log in logs:
        with open_log(log.path) as file:
            if only_prompts:
                printer.write_title(log)
                _print_sent_texts(file, printer)
                continue
            start = _find_tail_offset(file, asked.lines)
            end = f" (at most the last {asked.lines} lines; --lines 0: all)"
            printer.write_title(log, end if start else "")
            file.seek(start)
            _print_rest(file, printer)
        printer.end()


def _print_sent_texts(file: BinaryIO, printer: Printer) -> None:
    sent_texts = read_sent_texts(file.fileno())
    if sent_texts is None:
        printer.write(b"(no agent was started yet, or an earlier version wrote this log)\n")
        return
    for text in sent_texts.texts:
        name, data = text.name, text.data
        if name != "prompt":
            printer.write(b"--- %b\n" % name.encode())
        elif len(sent_texts.texts) > 1:
            printer.write(b"--- prompt\n")
        printer.write(data + b"\n" * (not data.endswith(b"\n")))
        printer.end()


def _report_logs_elsewhere(invocation: Invocation, request: RequestedLogs) -> None:
    """Say which machines have the newest requested logs that are not on this machine.

    If machines share a folder for logs, the logs of the others are here too.
    """
    dispatch = request.run.dispatch
    if dispatch is None:
        return
    local_paths = {log.path.name: log.path for log in request.find_logs()}
    attempts = [
        a
        for a in dispatch.list_ended_attempts()
        if request.is_about(slug(a.step), a.step_index + 1)
    ]
    for attempt in attempts[-request.count :]:
        path = local_paths.get(Path(attempt.log).name)
        if path is None or read_log_token(path) != attempt.token:
            number = f"iteration {attempt.step_index + 1}, attempt {attempt.attempt}"
            step = f"step {attempt.step!r} ({number})"
            invocation.notify(f"notice: the log of {step} is on {attempt.host}: {attempt.log}")


def _print_rest(file: BinaryIO, printer: Printer) -> None:
    """Print the rest of a log without the prompt, which is long and has its own option."""
    sent_texts, place = read_sent_texts(file.fileno()), file.tell()
    if sent_texts is not None and place < sent_texts.end:
        printer.write(file.read(max(sent_texts.start - place, 0)))
        file.seek(sent_texts.end)
    while data := file.read(CHUNK_BYTES):
        printer.write(data)


def _find_tail_offset(file: BinaryIO, lines: int) -> int:
    """Return the offset of the last *lines* lines, but at most `TAIL_BYTES` from the end.

    0: the whole file.
    """
    if not lines:
        return 0
    offset = file.seek(max(file.seek(0, os.SEEK_END) - TAIL_BYTES, 0))
    data = file.read()
    place = len(data)
    # The newline that ends the last line does not start another.
    for _ in range(lines + 1):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return offset
    return offset + place + 1


def follow_logs(invocation: Invocation, asked: RequestedLogs) -> None:
    """Print the end of the newest log, then everything that is written, until Ctrl-C."""
    asked.ensure_known()
    logs, lines = asked.find_logs(), asked.lines
    if not logs:
        invocation.notify(f"{NONE} {asked.folders[0]}")
    printer, file = Printer(), None
    try:
        for new_logs in _watch_logs(asked, logs):
            # First the rest of the current log: the later logs were listed after it was written.
            if file is not None:
                _print_rest(file, printer)
            for log in new_logs:
                if file is not None:
                    file.close()
                    printer.end()
                file = open_log(log.path)
                start = _find_tail_offset(file, lines)
                printer.write_title(log)
                file.seek(start)
                _print_rest(file, printer)
            lines = 0
    except KeyboardInterrupt:
        return
    finally:
        if file is not None:
            file.close()


def _watch_logs(request: RequestedLogs, logs: list[FoundLog]) -> Iterator[list[FoundLog]]:
    """Yield the newest of *logs*; then, each time something is written, the logs that are new.

    Between checks it sleeps until the folders change, for at most `RECHECK_S`.
    """
    seen_paths, known_times = {log.path for log in logs}, list[int]()
    watched_folders = _find_existing_folders(request.folders)
    watcher = watch(watched_folders[0], None, *watched_folders[1:])
    try:
        yield logs[-1:]
        while True:
            times, new_logs = list(map(read_mtime_ns, request.folders)), []
            if times != known_times:
                known_times = times
                new_logs = sorted(log for log in request.find_logs() if log.path not in seen_paths)
                seen_paths |= {log.path for log in new_logs}
            yield new_logs
            folders = _find_existing_folders(request.folders)
            if folders == watched_folders:
                watcher.wait(RECHECK_S, ())
                continue
            # The first step has started, or another branch was checked out.
            watcher.close()
            watched_folders, watcher = folders, watch(folders[0], None, *folders[1:])
    finally:
        watcher.close()


def _find_existing_folders(wanted_folders: Sequence[Path]) -> list[Path]:
    """Return the first of *wanted_folders* or its nearest existing parent, then others that exist.

    Of the others, only the ones written last: a system can watch only a few folders.
    """
    folder = next(
        (path for path in (wanted_folders[0], *wanted_folders[0].parents) if path.is_dir()),
        Path("/"),
    )
    other_folders = sorted(filter(Path.is_dir, wanted_folders[1:]), key=read_mtime_ns, reverse=True)
    return [folder, *sorted(other_folders[:MAX_WATCHED])]
