"""The code that the executors of all command-line clients share.

A client's module says how to call its program and how to read its events. This module makes
an attempt from that: the keys of the entry, the lines of a JSON event stream, the session that
a later step continues. A line that is not a JSON object is passed through, and an unknown event
is ignored, because clients add new events every week. No default here switches off a client's
permission checks.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from sequencer.errors import StorageFailed
from sequencer.executors.cancellation import Cancellation
from sequencer.executors.client_events import JsonEventParser, Rules
from sequencer.executors.client_limits import (
    DEFAULT_WAIT_S,
)
from sequencer.executors.launch import Launch, agent_environment
from sequencer.executors.prices import ModelPrice
from sequencer.executors.process import (
    ProcessCore,
    build_launch,
    conclude,
    resolve_program,
)
from sequencer.executors.protocol import (
    Executor,
    Listener,
    Objection,
    Piece,
    StepRequest,
    is_provider_variable,
    tools_objection,
)
from sequencer.executors.pump import DONE, STUCK
from sequencer.executors.result_file import make_folder
from sequencer.executors.wall import Wall
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import Field
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import ModelName
from sequencer.store.folder import open_new_file


class ClientOptions(Frozen):
    """Keys of every ``agents: {NAME: {kind: CLIENT, …}}``."""

    program: str = Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")
    """Name on PATH, or a path."""
    model: ModelName | None = None
    """The model of steps that name none; None: the client's default."""
    extra_args: tuple[str, ...] = ()
    """Arguments for the client, in front of the arguments for the step."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for the agent, in addition to the ones on the allowlist."""
    pass_env: tuple[str, ...] = ()
    """Names of further variables of this process that the agent gets."""
    fail_on_denial: bool = False
    """True: a refused tool call fails the step; False: it is only a warning."""
    limit_wait_s: float = Field(default=DEFAULT_WAIT_S, gt=0, le=86_400)
    """How long to wait after a usage limit if the client does not say when it ends."""
    wall: Wall = Wall.SCOPES
    """The wall between the agent and other processes of its user."""
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    """By model, in USD per million tokens; the project's prices are added."""

    def find_in_extra_args(self, arguments: Collection[str]) -> list[str]:
        """Return the names of the *arguments* that `extra_args` contains.

        Values are left out: they may be settings with secrets.
        """
        names = [argument.partition("=")[0] for argument in self.extra_args]
        return [name for name in names if name in arguments]


_OFF = ("", "0", "false", "no", "off")
"""Values that leave a switch off; clients read them the same way."""
SYSTEM_PROMPT = "system-prompt.md"
APPENDED_PROMPT = "append-system-prompt.md"


def write_files(request: StepRequest, more: Mapping[str, str]) -> None:
    """Write the request's system prompts and the texts of *more* to files for the agent.

    *more* maps names to texts; `StepRequest.file_path` gives the paths.

    Raises:
        StorageFailed: the folder of the run's results can't be written.
    """
    for name, text in (
        (SYSTEM_PROMPT, request.system_prompt),
        (APPENDED_PROMPT, request.append_system_prompt),
        *more.items(),
    ):
        if text is None:
            continue
        path = request.file_path(name)
        try:
            with open_new_file(path) as file:
                file.write(text.encode())
        except OSError as error:
            message = f"can't be written: {error.strerror or error}"
            raise StorageFailed(message, where=str(path)) from error


OptionsT = TypeVar("OptionsT", bound=ClientOptions)


class Call(Struct, frozen=True):
    """One call of a client's program, as the client's module makes it."""

    argv: list[str]
    environment: dict[str, str]
    parser: JsonEventParser
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts that the program reads, by name; `StepRequest.file_path` gives their paths."""


class ClientExecutor(ABC, Generic[OptionsT]):
    """Runs one client's program with the process core."""

    kind: ClassVar[str]
    supported_fields: ClassVar[frozenset[str]]
    install: ClassVar[str]
    """How to get the program."""
    passed: ClassVar[frozenset[str]]
    """Variables that the program needs to find its account."""
    switches: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Variable -> more variables that pass while this process's environment switches it on."""
    plain: ClassVar[Mapping[str, Any]] = {}
    """Options that allow nothing, for an agent without tools."""

    def __init__(self, name: str, options: OptionsT, core: ProcessCore) -> None:
        self.name = name
        self.options = options
        self._core = core

    @property
    def wall(self) -> Wall:
        return self.options.wall

    @abstractmethod
    def build_call(self, request: StepRequest) -> Call:
        """Return the call that performs *request*.

        Raises:
            ValueError: the program does not support it; the message says why.
        """

    def find_missing(self, folder: Path | None) -> str | None:
        """Return why the client can't be started, and how to install it; None: it can.

        A path in `program` is relative to *folder*.
        """
        program = self.options.program
        path = program if folder is None else resolve_program(program, folder)
        if shutil.which(path, path=self.options.env.get("PATH")):
            return None
        problem = "is not a program" if "/" in program else "is not on PATH"
        return f"agents.{self.name}: {program!r} {problem}; {self.install}"

    def problems(self) -> list[str]:
        """Return what is missing before a step could run."""
        return [*filter(None, [self.find_missing(None)])]

    def without_tools(self, project: Path) -> Executor | Objection:
        """Return a copy of this executor that only answers, or the reason why there can't be one.

        The options in `plain`, which allow nothing, replace the entry's.
        """
        program = resolve_program(self.options.program, project)
        options = self.options.replace(program=program, **self.plain)
        objection = tools_objection(self, self.options.extra_args)
        return objection or type(self)(self.name, options, self._core)

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Make one attempt."""
        try:
            call = self.build_call(request)
        except ValueError as error:
            is_over = request.max_cost_usd is not None and request.max_cost_usd <= 0
            text = f"agents.{self.name}: {error}"
            return Outcome(status=OutcomeStatus.FAILED, error=text, is_over_budget=is_over)
        make_folder(request.result_path)
        write_files(request, call.files)
        return perform_process(
            self._core,
            build_launch(
                call.argv,
                call.environment,
                request,
                hint=self.install,
                wall=self.options.wall,
            ),
            request,
            listener,
            cancellation,
            call.parser,
        )

    def rules(self, request: StepRequest) -> Rules:
        """Return the rules of this entry for the outcome of *request*."""
        options = self.options
        return Rules(
            fail_on_denial=options.fail_on_denial,
            limit_wait_s=options.limit_wait_s,
            model=request.step.model or options.model,
            prices=options.prices,
        )

    def environment(
        self,
        defaults: Mapping[str, str] | None = None,
        fixed: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return the agent's environment.

        The entry's ``env`` overrides *defaults*; *fixed* overrides both.
        """
        variables = {**(defaults or {}), **self.options.env, **(fixed or {})}
        return agent_environment(extra=variables, passed=self._passed_variables(os.environ))

    def withheld_variables(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables of model providers in *environ* that the agent does not get."""
        environment = agent_environment(
            extra=self.options.env, passed=self._passed_variables(environ), base=environ
        )
        return sorted(
            name for name in environ if is_provider_variable(name) and name not in environment
        )

    def _passed_variables(self, environ: Mapping[str, str]) -> Iterable[str]:
        """Yield the variables that this agent gets in addition to `EVERY_AGENT`.

        *environ* decides which switches are on.
        """
        yield from self.passed
        yield from self.options.pass_env
        for switch, names in self.switches.items():
            yield switch
            if environ.get(switch, "").lower() not in _OFF:
                yield from names


LINE_CAP = 6 * 1024 * 1024
"""An image in an event has 5 MB; memory holds several copies of a line, at up to 4 bytes a
character."""
_STDERR_LINE_CAP = 65_536


def perform_process(  # noqa: PLR0917 - the order is that of Executor.perform
    core: ProcessCore,
    launch: Launch,
    request: StepRequest,
    listener: Listener,
    cancellation: Cancellation,
    parser: JsonEventParser,
) -> Outcome:
    """Make one attempt with a command-line client and return how it ended."""
    consumer, max_equal_calls = _Lines(parser, listener), request.step.most_equal_calls

    def is_stuck() -> bool:
        repeats = bool(max_equal_calls) and parser.observed.repeated_calls >= max_equal_calls
        return repeats or parser.refused is not None

    end = core.run(replace(launch, is_stuck=is_stuck), consumer, cancellation)
    consumer.finish()
    judge = parser.build_done_outcome if end.ended_by == DONE else parser.finish
    outcome = conclude(end, request, listener, judge)
    if end.ended_by == STUCK and parser.refused is not None:
        return outcome.replace(error=parser.refused)
    return outcome


class _Lines:
    """Splits stdout into lines for a parser; passes stderr to the listener unchanged."""

    def __init__(self, parser: JsonEventParser, listener: Listener) -> None:
        self._listener = listener
        self._parser = parser
        self._has_progressed = False
        self._out = LineSplitter(self._process_line, self._process_raw, LINE_CAP)
        self._err = LineSplitter(parser.feed_stderr, lambda _: None, _STDERR_LINE_CAP)

    def feed_stdout(self, data: bytes) -> bool:
        self._has_progressed = False
        self._out.feed(data)
        return self._has_progressed

    def feed_stderr(self, data: bytes) -> bool:
        self._listener.write(data, Piece.ERROR)
        self._err.feed(data)
        # No progress: stderr has the client's warnings and retries, stdout the agent's output.
        return False

    def _process_line(self, line: bytes) -> None:
        if self._parser.feed_line(line, self._listener):
            self._has_progressed = True

    def _process_raw(self, raw: bytes) -> None:
        # An event this large is a tool's result.
        self._has_progressed = True
        self._parser.skip()
        self._listener.write(raw, Piece.OUTPUT)

    def finish(self) -> None:
        self._out.finish()
        self._err.finish()


class LineSplitter(Struct):
    """Passes whole lines to one function, and overlong lines in pieces to another."""

    take_line: Callable[[bytes], None]
    take_raw: Callable[[bytes], None]
    cap: int
    _line: bytearray = field(default_factory=bytearray)
    _is_overlong: bool = False

    def feed(self, data: bytes) -> None:
        """Process the next piece of the stream."""
        head, *other_lines = data.split(b"\n")
        self._extend(head)
        for piece in other_lines:
            self._end_line()
            self._extend(piece)

    def finish(self) -> None:
        """Process the end of the stream; the last line may have no newline."""
        if self._line:
            self.take_line(bytes(self._line))
            self._line.clear()

    def _extend(self, piece: bytes) -> None:
        if self._is_overlong:
            if piece:
                self.take_raw(piece)
            return
        self._line += piece
        if len(self._line) > self.cap:
            self._is_overlong = True
            self.take_raw(bytes(self._line))
            self._line = bytearray()

    def _end_line(self) -> None:
        if self._is_overlong:
            self._is_overlong = False
            self.take_raw(b"\n")
            return
        line = bytes(self._line)
        self._line.clear()
        self.take_line(line)
