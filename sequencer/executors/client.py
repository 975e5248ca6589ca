"""The part that the executors of all command-line clients share.

A client's own module says how its program is called and how its events are understood;
here an attempt is put together from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from sequencer.executors.client_events import Rules
from sequencer.executors.client_options import ClientOptions, missing_program, write_files
from sequencer.executors.environment import agent_environment
from sequencer.executors.process import EventParser, ProcessCore, perform_process
from sequencer.executors.protocol import Cancellation, Listener, StepRequest
from sequencer.executors.result_file import make_folder
from sequencer.model.outcome import Outcome, OutcomeStatus

OptionsT = TypeVar("OptionsT", bound=ClientOptions)


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt as its client's module wants it."""

    argv: list[str]
    environment: dict[str, str]
    parser: EventParser
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts by name that the program reads, for where `prompt_path` says."""


class ClientExecutor(ABC, Generic[OptionsT]):
    """Runs one client's program under the process core."""

    kind: ClassVar[str]
    supported_fields: ClassVar[frozenset[str]]
    install: ClassVar[str]
    """How to get the program."""
    passed: ClassVar[tuple[str, ...]]
    """Variables without which the program could not find its account."""

    def __init__(self, name: str, options: OptionsT, core: ProcessCore) -> None:
        self.name = name
        self.options = options
        self._core = core

    @abstractmethod
    def call(self, request: StepRequest) -> Call:
        """Return how *request* is performed.

        Raises:
            ValueError: the program can't be asked for that, as its message says.
        """

    def missing(self, _folder: Path | None) -> str | None:
        """See `protocol.Installed`."""
        return next(iter(self.problems()), None)

    def problems(self) -> list[str]:
        """Return what is missing before a step could run."""
        return missing_program(self.name, self.options, self.install)

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Make one attempt."""
        try:
            call = self.call(request)
        except ValueError as error:
            return Outcome(status=OutcomeStatus.FAILED, error=f"agents.{self.name}: {error}")
        make_folder(request.result_path)
        write_files(request, call.files)
        return perform_process(
            self._core,
            call.argv,
            call.environment,
            request,
            listener,
            cancellation,
            call.parser,
            install_hint=self.install,
        )

    def rules(self, request: StepRequest) -> Rules:
        """Return how the entry wants outcomes of *request* judged."""
        options = self.options
        return Rules(
            fail_on_denial=options.fail_on_denial,
            limit_wait_s=options.limit_wait_s,
            model=request.step.model or options.model,
            prices=options.prices,
        )

    def environment(
        self,
        request: StepRequest,
        defaults: Mapping[str, str] | None = None,
        fixed: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """Return the agent's environment; the entry's ``env`` goes before *defaults* only."""
        extra = {**(defaults or {}), **self.options.env, **(fixed or {})}
        names = (*self.passed, *self.options.pass_env)
        return agent_environment(request.environment, extra=extra, passed=names)
