"""What one invocation of the command line knows, and how it speaks.

Facts that were asked for go to standard output; progress, notices and errors go to
standard error, so that a program can read the one and a person the other. Text is made
safe whatever it goes to: a pipe most often ends at a terminal too, or in a mail.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from sequencer.cli.unattended import News
from sequencer.cli.views.text import UNSEEN, columns_of, fitted, plain
from sequencer.errors import SequencerError, StorageFailed, UnknownName
from sequencer.executors.redaction import Redaction
from sequencer.model.names import slug

if TYPE_CHECKING:
    from sequencer.assembly.agents import AgentOverrides
    from sequencer.engine.run import Run
    from sequencer.model.head import Head
    from sequencer.project import Project
    from sequencer.store.protocol import View

_ODD = re.compile(f"[\x7f-\x9f\u2028\u2029\ud800-\udfff{UNSEEN}]")
"""What JSON may hold as it is, and a terminal, a reader of lines or UTF-8 may not."""


Found = TypeVar("Found")
ALWAYS = "always"
REHEARSING = (
    "rehearsal: no agent runs and nothing is paid or posted; hooks and the router are off, and\n"
    "the run counts the steps as done ('--run NAME' rehearses in a run of its own)"
)


@dataclass(slots=True)
class Invocation:
    """The global options, and the project that they lead to."""

    arguments: tuple[str, ...] = ()
    """Everything that was typed behind the program's name."""
    config: Path | None = None
    run_name: str | None = None
    is_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    acts: bool = True
    """Whether the verb may run what the project has and reach remotes, and does not only look."""
    verb: str = ""
    changes: bool = False
    """The verb changes a run by hand."""
    decides: str = ""
    """Only a person may use it: `ALWAYS`, or if this option is among the arguments."""
    news: News = field(default_factory=News)
    """How it ended, for a timer that tells a person only what has changed."""
    _project: Project | None = field(default=None, repr=False)
    _runs: dict[str | None, Run] = field(default_factory=dict, repr=False)

    # --- the project and its run ---------------------------------------------------

    def project(
        self,
        options: Mapping[str, object] | None = None,
        overrides: AgentOverrides | None = None,
        *,
        rehearses: bool = False,
        may_be_none: bool = False,
    ) -> Project:
        """Return the project of the current folder, opened once; its notices are shown.

        *options* by name may lie over settings; the first call's count, and whether it
        *rehearses*, which is said. With *may_be_none* the question is about what is built in,
        so that no project is needed.

        Raises:
            ConfigurationError: everything that is wrong with the configuration, or there is
                no project.
            DecisionRefused: the verb is for people, and an agent calls it.
            NotTrusted: the verb would run something of the project, or post with its secrets.
        """
        if self._project is None:
            from sequencer.cli import trust  # noqa: PLC0415 - `--help` needs no project

            project = trust.opened(self, options or {}, overrides, rehearses=rehearses)
            if not may_be_none:
                trust.ensure_is_one(project)
            self.notices(in_short(project.settings.notices))
            if rehearses:
                self.say(REHEARSING)
            trust.ensure_may_change(self, project)
            self._project = project
        return self._project

    def run(self, *, may_begin: bool = False) -> Run:
        """Return the run that ``--run`` names, or the default run: the same one each time.

        Raises:
            UnknownName: there is no such run, and this verb does not begin one
                (*may_begin*); a typing error must not look like a run without progress.
        """
        project, name = self.project(), self.run_name
        if name is not None and not may_begin:
            known = project.run_names()
            if slug(name) not in map(slug, known):
                raise UnknownName("run", name, known, where="--run")
        if name not in self._runs:
            self._runs[name] = project.run(name)
        return self._runs[name]

    # --- speaking ------------------------------------------------------------------

    @property
    def room(self) -> int | None:
        """Return how many columns a table has on standard output; None: as many as it needs."""
        return columns_of(sys.stdout)

    def echo(self, text: str, *, is_verbatim: bool = False) -> None:
        """Write a fact that was asked for to standard output, in lines that fit a terminal.

        What is *is_verbatim* stays as it is: a program reads it, or a person copies it.

        Raises:
            BrokenPipeError: nobody reads any more.
            StorageFailed: it can't be written, because the disk is full for example.
        """
        _write(sys.stdout, text if is_verbatim else fitted(near(text), self.room))

    def print_json(self, value: object, *, indent: int | None = None) -> None:
        """Write *value* as one JSON document and a line end; see `echo`."""
        self.echo(json_text(value, indent=indent), is_verbatim=True)

    def say(self, text: str) -> None:
        """Write progress or a confirmation to standard error, unless ``--quiet``."""
        if not self.is_quiet:
            tell(text)

    def notices(self, texts: Iterable[str] | View) -> None:
        """Show what a person should know about how the facts were come by."""
        found = texts if isinstance(texts, Iterable) else texts.notices
        for text in found:
            self.say(f"notice: {text}")


def in_short(notices: Sequence[str]) -> tuple[str, ...]:
    """Return the *notices* about settings as each command shows them; `check` shows them all.

    >>> in_short(["a", "b"])
    ("2 settings have no effect here; 'sequencer check' lists them",)
    """
    if len(notices) <= 1:
        return tuple(notices)
    return (f"{len(notices)} settings have no effect here; 'sequencer check' lists them",)


def each_run(
    project: Project, look: Callable[[Run, Head], Found]
) -> Iterator[tuple[Run, Found | SequencerError]]:
    """Yield every run of *project* that has begun with what *look* finds, or why it can't."""
    for name in (None, *project.run_names()):
        run = project.run(name)
        try:
            if (head := run.head) is not None:
                yield run, look(run, head)
        except SequencerError as error:
            # One that is damaged must not hide the others.
            yield run, error


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return *value* as JSON that can be written as UTF-8, to a terminal or by the line."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _ODD.sub(lambda found: json.dumps(found[0])[1:-1], text)


def hidden(text: str) -> str:
    """Return *text* without the secrets of the environment, and without what looks like one."""
    return Redaction.of(os.environ).hide_text(text)


def near(text: str) -> str:
    """Return *text* with paths below the working folder as they are called from there."""
    try:
        folder = os.path.join(os.getcwd(), "")  # noqa: PTH109, PTH118 - no Path for a prefix
    except OSError:
        return text
    if folder == "/" or folder not in text:
        return text
    return re.sub(rf"(?<![^\s'\"(=:,]){re.escape(folder)}(?=[^\s'\"])", "", text)


def tell(text: str) -> None:
    """Write a message to standard error: without secrets, in lines that fit a terminal."""
    tell_fitted(hidden(text))


def tell_fitted(text: str) -> None:
    """Write a message without secrets to standard error, in lines that fit a terminal."""
    complain(fitted(near(text), columns_of(sys.stderr)))


def complain(text: str) -> None:
    """Write *text* to standard error; a closed or full one is nobody's error."""
    with contextlib.suppress(OSError, ValueError):
        _write_to(sys.stderr, text)


def _write(stream: IO[str] | None, text: str) -> None:
    try:
        _write_to(stream, text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageFailed(
            f"can't be written: {error.strerror}", where="standard output"
        ) from error


def _write_to(stream: IO[str] | None, text: str) -> None:
    # None: it was closed before the program began, so nobody wants to read.
    if stream is None:
        return
    stream.write(plain(text) + "\n")
    stream.flush()
