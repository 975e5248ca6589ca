"""One invocation of the command line: its options, its project and runs, and its output.

Requested facts go to standard output, for programs. Progress, notices and errors go to standard
error, for people. All text is made safe for terminals: a pipe usually ends at a terminal or in an
email too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click
from msgspec import Struct, field
from msgspec.structs import asdict

from sequencer import extensions
from sequencer.cli.unattended import DECISION, TickNotice
from sequencer.cli.views.text import (
    UNSEEN,
    has_color,
    one_line,
    strip_controls,
    terminal_width,
    wrap_prose,
)
from sequencer.errors import (
    NotTrusted,
    SequencerError,
    StorageFailed,
    UnknownName,
    UsageRefused,
    complete_commands,
    format_command,
    summarize_facts,
)
from sequencer.executors.redaction import Redaction
from sequencer.files.textfile import slug
from sequencer.project.enabled_plugins import read_disabled
from sequencer.store.identity import is_inside_agent

if TYPE_CHECKING:
    from sequencer.engine.run import Run
    from sequencer.files.yamlfile import KeyPath
    from sequencer.project.agents import AgentOverrides
    from sequencer.project.project import Project
    from sequencer.store.protocol import View

_ODD = re.compile(f"[\x7f-\x9f\u2028\u2029\ud800-\udfff{UNSEEN}]")
"""Characters that JSON allows unescaped but a terminal, a line reader or UTF-8 does not."""


SHOWN_RUNS = 5
"""At most this many other runs are named when the user may have meant one of them."""
ALWAYS = "always"
REHEARSING = (
    "rehearsal: no agent runs and nothing is paid or posted; hooks and the router are off, and\n"
    "the run counts the steps as done ('--run NAME' rehearses in a run of its own)"
)


BUILT_IN = "steps can use these agents, and the built-in ones without changes"
_OPTIONS: Mapping[str, tuple[str, str]] = {
    "workflow": ("workflow", "name"),
    "review_every": ("workflow", "review_every_n"),
    "agent": ("agent", "default"),
    "router": ("router", "enabled"),
    "mode": ("run", "mode"),
    "max_steps": ("run", "max_steps"),
    "max_cycles": ("run", "max_cycles"),
    "max_cost": ("run", "max_cost_usd"),
    "max_wait": ("run", "max_wait_s"),
    "step_timeout": ("run", "step_timeout_s"),
    "max_parallel": ("run", "max_parallel"),
}
"""Option -> key path of the setting that it overrides."""


def ensure_available(config: Path | None, plugin: str | None, what: str) -> None:
    """Check that *plugin*, which provides *what*, is available; None means the core.

    Raises:
        PluginUnavailable: *config* (or this folder's configuration) disables it, or it is not
            installed.
    """
    if plugin is None:
        return
    extensions.configure(read_disabled(config))
    if not extensions.is_available(plugin):
        raise extensions.PluginUnavailable(what, plugin)


class Invocation(Struct):
    """The global options, and the project and runs that they select."""

    arguments: tuple[str, ...] = ()
    """Everything that was typed after the program's name."""
    config: Path | None = None
    run_name: str | None = None
    means_default: bool = False
    """Whether ``--run default`` was given and means the default run."""
    is_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    acts: bool = True
    """Whether the verb may run programs of the project and contact remotes, not only look."""
    verb: str = ""
    reads: bool = False
    """Whether the verb only shows or cleans up runs, so that a disabled plug-in is not an error."""
    changes: bool = False
    """Whether the verb changes a run by hand."""
    decides: str = ""
    """`ALWAYS`: only a person may use the verb. Else the option that only a person may use."""
    news: TickNotice = field(default_factory=TickNotice)
    """How the invocation ended, for a timer that notifies a person only of changes."""
    run_id: str = ""
    """The id of the run in which an error ended the work; empty: no run."""
    explained: SequencerError | None = None
    """The error that `news` explains. For any other error, its message becomes the news."""
    obstacle: SequencerError | None = None
    """Why the next step can't start here. The tick that notices it reports it."""
    happened: list[TickNotice] = field(default_factory=list)
    """News for a person in addition to how the invocation ended."""
    _project: Project | None = None
    _runs: dict[str | None, Run] = field(default_factory=dict)

    # --- the project and its run ---------------------------------------------------

    def project(
        self,
        options: Mapping[str, object] | None = None,
        overrides: AgentOverrides | None = None,
        *,
        rehearses: bool = False,
        may_be_none: bool = False,
    ) -> Project:
        """Return the project of the current folder; the first call opens it and shows its notices.

        *options*, by name, override settings. Only the first call uses them, and tells the user
        that it *rehearses*. *may_be_none*: the command may be about something built in.

        Raises:
            ConfigurationError: the configuration has errors (all are listed), or there is no
                project.
            DecisionRefused: an agent calls a verb that is for people.
            NotTrusted: the verb would run something from the project, or post with its secrets.
        """
        if self._project is None:
            # Imported here, because `--help` needs no project.
            from sequencer.project.project import open_project  # noqa: PLC0415
            from sequencer.project.scheduler import load_scheduler  # noqa: PLC0415
            from sequencer.project.sources import FlagValue  # noqa: PLC0415

            values = options or {}
            flags = {key: FlagValue(option, value) for key, option, value in _overrides(values)}
            open_with = partial(
                open_project,
                config=self.config,
                overrides=overrides,
                acts=self.acts,
                reads=self.reads,
                rehearses=rehearses,
                trust=lambda refusal: ask_for_trust(self, refusal),
            )
            project = open_with(flags=flags)
            self._resolve_default(project)
            workflow = load_scheduler(project).workflows(project).get(self.run_name or "")
            # A scheduled run uses the workflow of its schedule, unless the user names another one.
            if workflow is not None and values.get("workflow") is None:
                source = f"schedules.{self.run_name}.workflow"
                flags["workflow", "name"] = FlagValue(source, workflow)
                project = open_with(flags=flags)
            if not may_be_none:
                project.ensure_exists()
            self._show_project_notices(project, rehearses=rehearses)
            ensure_may_change(self, project)
            self._project = project
        return self._project

    def _show_project_notices(self, project: Project, *, rehearses: bool) -> None:
        self.show_notices(shorten_notices(project.settings.notices))
        if rehearses:
            self.notify(REHEARSING)

    def run(self, *, may_begin: bool = False) -> Run:
        """Return the run that ``--run`` names, or the default run; the same object each time.

        Raises:
            UnknownName: there is no such run, and the verb may not start one (*may_begin*).
                A typo must not look like a run without progress.
        """
        project, name = self.project(), self.run_name
        if name is not None and not may_begin:
            known_names = self._list_known_runs(project)
            if slug(name) not in map(slug, known_names):
                raise UnknownName("run", name, ("default", *known_names), where="--run")
        if name not in self._runs:
            self._runs[name] = run = project.run(name)
            if name is not None and may_begin and not os.path.lexists(run.store.state_path):
                known_names = self._list_known_runs(project)
                for match in (
                    [] if name in known_names else get_close_matches(name, known_names, 1, 0.8)
                ):
                    self.notify(f"notice: {name!r} is a new run; there is a run {match!r}")
        return self._runs[name]

    def close(self) -> None:
        """Close the stores of the runs that this command has opened."""
        for run in self._runs.values():
            with contextlib.suppress(SequencerError, OSError):
                run.store.close()

    def _resolve_default(self, project: Project) -> None:
        """Let ``--run default`` mean the default run, unless a named run has this name.

        `status` calls the default run "default", so people type it.
        """
        if self.run_name == "default" and "default" not in self._list_known_runs(project):
            self.run_name, self.means_default = None, True

    @staticmethod
    def _list_known_runs(project: Project) -> list[str]:
        from sequencer.project.scheduler import load_scheduler  # noqa: PLC0415 - see `project`

        return [*dict.fromkeys((*project.run_names(), *load_scheduler(project).workflows(project)))]

    def run_to_show(self, *, is_listed: bool = False) -> Run:
        """Return the run that a person wants to see.

        Without ``--run``, that is the default run. If it has not started and there is exactly
        one other run, that one is returned and a notice says so. Programs (``--json``) always get
        the run they ask for. A notice says that there are more runs, unless *is_listed*: the
        caller lists them.
        """
        run = self.run()
        names = () if self.run_name is not None or self.is_json else self.project().run_names()
        if not names or (view := run.view()).head is not None:
            return run
        self.show_notices(view.notices)
        if len(names) == 1:
            self.notify(f"notice: this uses run {names[0]!r}, the only one that has started")
            self.run_name = names[0]
            return self.run()
        if not is_listed:
            self.notify(f"notice: 'sequencer status --all' lists {len(names)} other runs")
        return run

    def describe_not_started(self) -> str:
        """Return a sentence that the run has not started, with the names of other runs."""
        run_names = () if self.run_name is not None else self.project().run_names()
        names = ", ".join(map(one_line, run_names[:SHOWN_RUNS]))
        suffix = f" and {len(run_names) - SHOWN_RUNS} more" if len(run_names) > SHOWN_RUNS else ""
        hint = f"; add --run NAME for another run: {names}{suffix}" if run_names else ""
        subject = "run" if self.run_name is not None else "default run"
        return f"nothing has happened yet: the {subject} has not started{hint}"

    # --- speaking ------------------------------------------------------------------

    @property
    def max_width(self) -> int | None:
        """Return the columns for a table on standard output; None: as many as it needs."""
        return terminal_width(sys.stdout)

    def echo(
        self, text: str, *, is_verbatim: bool = False, colored: Callable[[str], str] | None = None
    ) -> None:
        """Write a requested fact to standard output, in lines that fit a terminal.

        With *is_verbatim*, lines are not wrapped, because a program reads them or a person copies
        them. On a terminal with colors, *colored* is applied to each line.

        Raises:
            BrokenPipeError: the reader is gone.
            StorageFailed: standard output can't be written, for example because the disk is full.
        """
        safe_text = strip_controls(
            text
            if is_verbatim
            else wrap_prose(relativize_paths(complete_commands(text)), self.max_width)
        )
        if colored is not None and has_color(sys.stdout):
            safe_text = "\n".join(map(colored, safe_text.split("\n")))
        _write(sys.stdout, safe_text + "\n")

    @staticmethod
    def write_colored(text: str) -> None:
        """Write *text* to standard output with its colors and without a line end.

        Only for this program's own text: nothing is made safe. Raises what `echo` raises.
        """
        _write(sys.stdout, text)

    def print_json(self, value: object, *, indent: int | None = None) -> None:
        """Write *value* to standard output as one JSON document and a line end."""
        self.echo(json_text(value, indent=indent), is_verbatim=True)

    def notify(self, text: str) -> None:
        """Write progress or a confirmation to standard error, unless ``--quiet``."""
        if not self.is_quiet:
            show_message(text)

    def announce(self, text: str, key: str) -> None:
        """Write *text* as `notify` does; a timer also tells a person, once per *key*."""
        self.notify(text)
        notice = hide_secrets(text.removeprefix("notice: "))
        lines = [f"to do: {format_command(self.run_name, 'status')} shows what comes next"]
        self.happened.append(TickNotice(self.add_run_context(notice, lines), key, DECISION))

    def add_run_context(self, text: str, more: Iterable[str] = ()) -> str:
        """Return *text*, then the project and the run that it is about, then *more* lines."""
        folder = Path() if self._project is None else self._project.settings.project_dir
        context_lines = (
            f"project: {one_line(str(folder.absolute()))}",
            f"run: {self.run_name or 'default'}",
        )
        return "\n".join(
            [
                complete_commands(text),
                *(f"  {line}" for line in (*context_lines, *map(hide_secrets, more))),
            ]
        )

    def show_notices(self, texts: Iterable[str] | View) -> None:
        """Show *texts*, or the notices of a view, as notices on standard error."""
        notices = texts if isinstance(texts, Iterable) else texts.notices
        for text in notices:
            self.notify(f"notice: {text}")


def is_interactive() -> bool:
    """Return whether a person can see a question and answer it."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def ask_for_trust(invocation: Invocation, refused: NotTrusted) -> bool:
    """Ask a person at the terminal to trust what *refused* lists; return False if no one is there.

    Raises:
        UsageRefused: the person read the list and said no.
    """
    if is_inside_agent() or not can_ask(invocation):
        return False
    title = "what this project can do has changed since you trusted it:"
    heading = title if refused.changed else "this project is not trusted here yet. It can:"
    facts = refused.changed or (*refused.acts, BUILT_IN)
    # Shown even with --quiet: the question makes no sense without the list.
    lines = (*(f"  {line}" for line in facts), *summarize_facts(facts))
    # Changes are not cut: the difference may be at the end of a long line.
    max_width = None if refused.changed else terminal_width(sys.stderr)
    for line in fit_lines((f"{refused.project}: {heading}", *lines), max_width):
        click.echo(line, err=True)
    if confirm_trust():
        return True
    raise UsageRefused(
        "you did not trust the project, so nothing was run",
        where=refused.project,
        hint="'sequencer trust' asks again",
    )


def can_ask(invocation: Invocation) -> bool:
    """Return whether a person is at the terminal and *invocation* may ask questions."""
    return not invocation.is_json and is_interactive()


def confirm_trust() -> bool:
    """Ask the person at the terminal whether the project may act; return the answer."""
    return click.confirm("Let it act on this machine?", default=False, err=True)


def safe_line(line: str) -> str:
    """Return *line* of a list made safe to show; a project may have written anything in it."""
    return "  " * line.startswith("  ") + one_line(line)


def fit_lines(lines: Iterable[str], max_width: int | None) -> Iterator[str]:
    """Yield *lines* of a list made safe to show, each cut to *max_width* columns (None: not cut).

    A line that is cut says how many characters are left out.
    """
    is_cut = False
    for line in map(safe_line, lines):
        if max_width is None or len(line) <= max_width:
            yield line
            continue
        is_cut = True
        start = line[: max_width - len(f"… ({len(line)} more)")]
        yield f"{start}… ({len(line) - len(start)} more)"
    if is_cut:
        yield "'sequencer trust --json' shows the long lines whole"


def ensure_may_change(invocation: Invocation, project: Project) -> None:
    """Check that this caller may use the verb of *invocation* in *project*.

    Raises:
        DecisionRefused: an agent calls a verb for people, and the project does not allow it.
        NotTrusted: the verb would contact a remote, run hooks or post with secrets.
        ConfigurationError: the verb would change the run, but its kind of store is missing.
    """
    settings = project.settings
    words = (ALWAYS, *(word.partition("=")[0] for word in invocation.arguments))
    is_decision = invocation.decides != "" and invocation.decides in words
    if is_decision:
        project.ensure_may_decide(invocation.verb)
    if settings.missing_store is not None and invocation.changes:
        # The files in this folder are only a copy of the run: they can be read, not changed.
        if is_decision or invocation.verb != "repair":
            raise settings.missing_store
        return
    needs_trust = not settings.store_kind.is_local
    if is_decision:
        needs_trust = needs_trust or bool(settings.hooks) or project.posting is not None
    if needs_trust and invocation.changes:
        project.trust.ensure()


def _overrides(options: Mapping[str, object]) -> Iterator[tuple[KeyPath, str, object]]:
    """Yield (key path, option as typed, value) for each of *options* that is set."""
    for name, key in _OPTIONS.items():
        if (value := options.get(name)) is not None:
            yield key, _format_option(name, value), value


def _format_option(option: str, value: object) -> str:
    """Return *option* as a person types it for *value*."""
    return f"--{'no-' if value is False else ''}{option.replace('_', '-')}"


def shorten_notices(notices: Sequence[str]) -> tuple[str, ...]:
    """Return the *notices* about settings as most commands show them; `check` shows them all.

    >>> shorten_notices(["a", "b"])
    ("2 settings have no effect here; 'sequencer check' lists them",)
    """
    if len(notices) <= 1:
        return tuple(notices)
    return (f"{len(notices)} settings have no effect here; 'sequencer check' lists them",)


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return *value* as JSON that is safe as UTF-8, on a terminal and for line readers."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_to_json)
    return _ODD.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _to_json(value: object) -> object:
    return asdict(value) if isinstance(value, Struct) else str(value)


def hide_secrets(text: str) -> str:
    """Return *text* without the environment's secrets and without anything that looks like one."""
    return Redaction.from_environment(os.environ).hide_text(text)


def relativize_paths(text: str) -> str:
    """Return *text* with the paths below the working folder made relative to it."""
    try:
        folder = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - no Path for a prefix
    except OSError:
        return text
    if folder == "/" or folder not in text:
        return text
    return re.sub(rf"(?<![^\s'\"(=:,]){re.escape(folder)}(?=[^\s'\"])", "", text)


def show_message(text: str) -> None:
    """Write a message to standard error: without secrets, in lines that fit a terminal."""
    show_safe_message(hide_secrets(complete_commands(text)))


def show_safe_message(text: str) -> None:
    """Write a message without secrets to standard error, in lines that fit a terminal."""
    write_to_stderr(wrap_prose(relativize_paths(text), terminal_width(sys.stderr)))


def write_to_stderr(text: str) -> None:
    """Write *text* to standard error; if it is closed or full, the text is dropped."""
    with contextlib.suppress(OSError, ValueError):
        _write_plain(sys.stderr, strip_controls(text) + "\n")


def _write(stream: IO[str] | None, text: str) -> None:
    """Write *text*, which may have this program's colors.

    Raises:
        BrokenPipeError: the reader is gone.
        StorageFailed: it can't be written.
    """
    try:
        _write_raw(stream, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno == errno.EIO and stream is not None and _is_device(stream):
            # A terminal that is gone has no reader, like a closed pipe.
            raise BrokenPipeError from error
        raise StorageFailed(
            f"can't be written: {error.strerror}", where="standard output"
        ) from error


def _is_device(stream: IO[str]) -> bool:
    return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)


def _write_plain(stream: IO[str] | None, text: str) -> None:
    _write_raw(stream, strip_controls(text))


def _write_raw(stream: IO[str] | None, text: str) -> None:
    # None: the stream was closed before the program started, so no one reads it.
    if stream is None:
        return
    stream.write(text)
    stream.flush()
