"""Runs any program as an agent: the prompt is its standard input, the answer is its stdout.

No shell is involved: ``argv`` is a list, and a placeholder is replaced by one whole argument
or by one whole value after ``--option=``, whatever the value contains.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, ClassVar

from sequencer.executors.cancellation import Cancellation
from sequencer.executors.launch import GRACE_S, agent_environment
from sequencer.executors.prices import ModelPrice, with_estimated_cost
from sequencer.executors.process import (
    ProcessCore,
    ProcessEnd,
    build_launch,
    conclude,
    describe_exit,
    resolve_program,
)
from sequencer.executors.protocol import (
    Listener,
    Objection,
    Piece,
    StepRequest,
    is_free,
    qualified_model,
)
from sequencer.executors.result_file import make_folder
from sequencer.executors.wall import Wall
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import AfterValidator, Field
from sequencer.model.evidence import Evidence
from sequencer.model.outcome import Outcome, OutcomeStatus
from sequencer.model.step import Step
from sequencer.store import folder as folders

LAST_LINES, LINE_CHARS = 2, 300
"""How much of stdout an error quotes, like `describe_exit` quotes stderr."""
ANSWER_BYTES = 65_536
"""Maximum bytes from the end of stdout that become the answer; the log has all of it."""
PLACEHOLDERS = ("model", "prompt_file", "python", "system_prompt")
_FIELD = re.compile(r"(?P<option>--?[A-Za-z0-9][\w-]*=)?\{(?P<field>[a-z_]+)\}")
Pattern = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\*?$", min_length=2, max_length=200)
]
"""``NAME``, or ``PREFIX_*`` for all names with that prefix; ``*`` alone is refused."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
VariableValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]


def _check_placeholders(argv: tuple[str, ...]) -> tuple[str, ...]:
    if not argv[0]:
        raise ValueError("the program's name is empty")
    for index, argument in enumerate(argv):
        match = _FIELD.fullmatch(argument)
        if match is None:
            continue
        field = match["field"]
        if field not in PLACEHOLDERS:
            known_placeholders = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"unknown placeholder {argument!r}; known: {known_placeholders}")
        if (field == "python") != (index == 0):
            message = "{python} is for the program, the other placeholders for its arguments"
            raise ValueError(message)
    return argv


class CommandOptions(Frozen):
    """Keys of ``agents: {NAME: {kind: command, …}}``."""

    argv: Annotated[
        tuple[VariableValue, ...], Field(min_length=1), AfterValidator(_check_placeholders)
    ]
    """Program and arguments; an argument may be ``{model}``, ``{system_prompt}``,
    ``{prompt_file}`` or ``--option={…}``, the program ``{python}``. If the step names a
    provider, ``{model}`` is ``provider/model``."""
    env: dict[VariableName, VariableValue] = Field(default_factory=dict)
    """Variables for the program, in addition to the ones on the allowlist."""
    pass_env: tuple[Pattern, ...] = ()
    """Names (or ``PREFIX_*``) of further variables of this process that it gets."""
    grace_s: float = Field(default=GRACE_S, ge=0, le=600)
    """Seconds between TERM and KILL if it has to be ended."""
    wall: Wall = Wall.SCOPES
    """The wall between the program and other processes of its user."""
    free: bool = False
    """It costs nothing: if it reports no cost, the cost is 0 and not unknown."""
    prices: dict[str, ModelPrice] = Field(default_factory=dict)
    """By model, in USD per million tokens; the project's prices are added."""

    @property
    def placeholders(self) -> frozenset[str]:
        """Return the names of the placeholders in argv."""
        matches = map(_FIELD.fullmatch, self.argv)
        return frozenset(match["field"] for match in matches if match)


class CommandExecutor:
    """Runs one program for each step."""

    kind: ClassVar[str] = "command"
    providers: ClassVar[frozenset[str] | None] = None

    def __init__(self, name: str, options: CommandOptions, core: ProcessCore) -> None:
        """Use *name*, the agent's name, in messages."""
        self.name = name
        self.options = options
        self._core = core

    @property
    def supported_fields(self) -> frozenset[str]:
        """Return the fields that reach the program because its argv has their placeholders."""
        fields = self.options.placeholders & {"model", "system_prompt"}
        return fields | {"idle_timeout_s"} | ({"provider"} if "model" in fields else set())

    @property
    def wall(self) -> Wall:
        return self.options.wall

    def objections(self, step: Step) -> list[Objection]:
        """Return an objection if the provider would not reach the program."""
        if step.provider is None or step.model is not None:
            return []
        reason = f"provider: {step.provider}, but the step names no model"
        return [Objection(reason, "add model, or leave provider out")]

    def find_missing(self, folder: Path | None) -> str | None:
        """Return why `argv` can't be started, and what to do; None: nothing is missing.

        A path in `argv` is relative to *folder*; None: the folder is not known yet.
        """
        program, location = _expand_program(self.options.argv[0]), f"agents.{self.name}.argv"
        if os.sep not in program or Path(program).is_absolute():
            path = shutil.which(program, path=self._environment().get("PATH"))
            return (
                None if path else f"{location}: {program!r} is not a program on PATH; {self._hint}"
            )
        if folder is None or shutil.which(folder / program):
            return None
        location = f"{location}: {program!r} in {folder}"
        if (folder / program).is_file():
            return f"{location} is not executable; run chmod +x on it"
        return f"{location} is not a program; {self._hint}"

    def problems(self) -> list[str]:
        """Return a problem if the program can't be found."""
        problem = self.find_missing(None)
        return [] if problem is None else [problem]

    def without_tools(self, project: Path) -> CommandExecutor | Objection:
        """Return the same command for another folder; its permissions stay the same.

        It is the user's own program. An argument that names a file of *project* becomes the path
        of that file, whose content `trust` has compared.
        """
        if type(self) is not CommandExecutor:
            reason = "its kind comes from a package, which may run the program differently"
            return Objection(reason, "name an agent of kind command, or one with a model")
        program, *args = self.options.argv
        arguments = [str(project / arg) if os.path.isfile(project / arg) else arg for arg in args]  # noqa: PTH113 - of any text
        options = self.options.replace(argv=(resolve_program(program, project), *arguments))
        return CommandExecutor(self.name, options, self._core)

    def perform(
        self, request: StepRequest, listener: Listener, cancellation: Cancellation
    ) -> Outcome:
        """Run the program; exit code 0 means success."""
        prompt_file = request.result_path.with_name("prompt.md")
        try:
            argv = self._argv(request, prompt_file)
        except ValueError as error:
            return Outcome(status=OutcomeStatus.FAILED, error=str(error))
        has_file = "prompt_file" in self.options.placeholders
        make_folder(request.result_path)
        if has_file:
            # Only this user can read it; a link at its path is not followed.
            with folders.open_new_file(prompt_file) as file:
                file.write(request.prompt.encode("utf-8", "surrogateescape"))
        try:
            env, options = self._environment(), self.options
            launch = build_launch(
                argv, env, request, hint=self._hint, grace_s=options.grace_s, wall=options.wall
            )
            answer = _Answer(listener)
            end = self._core.run(launch, answer, cancellation)
        finally:
            if has_file:
                folders.remove(prompt_file)
        outcome = conclude(end, request, listener, answer.judge)
        if end.spawn_error is not None or is_free(self) or outcome.usage.cost_usd:
            return outcome
        # Only the result file can report a cost, and 0 means no report: the cost is unknown.
        usage = outcome.usage.replace(unpriced=1)
        if request.step.model is not None:
            usage = with_estimated_cost(usage, request.step.model, self.options.prices)
        return outcome.replace(usage=usage)

    @property
    def _hint(self) -> str:
        return f"install it, or name another program in agents.{self.name}.argv"

    def _environment(self) -> dict[str, str]:
        return agent_environment(passed=self.options.pass_env, extra=self.options.env)

    def _argv(self, request: StepRequest, prompt_file: Path) -> list[str]:
        values = {
            "model": qualified_model(request.step),
            "system_prompt": request.system_prompt,
            "prompt_file": str(prompt_file),
        }
        argv = [_expand_program(self.options.argv[0])]
        for argument in self.options.argv[1:]:
            match = _FIELD.fullmatch(argument)
            if match is None:
                argv.append(argument)
                continue
            value, option = values[match["field"]], match["option"]
            if value is not None:
                argv.append(f"{option or ''}{value}")
            elif option is None:
                message = f"agents.{self.name}.argv has {argument}, but step "
                message += f"{request.step.name!r} sets none\nset {match['field']} in the step"
                raise ValueError(message)
        return argv


class _Answer:
    """Passes all output to the listener and stores the end of stdout as the answer."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._end = b""
        self._bytes = 0

    def feed_stdout(self, data: bytes) -> bool:
        self._end = (self._end + data)[-ANSWER_BYTES:]
        self._bytes += len(data)
        self._listener.write(data, Piece.OUTPUT)
        return True

    def feed_stderr(self, data: bytes) -> bool:
        self._listener.write(data, Piece.ERROR)
        return True

    def judge(self, end: ProcessEnd) -> Outcome:
        output = self._end.decode("utf-8", "replace").strip()
        cut_bytes = self._bytes if self._bytes > ANSWER_BYTES else None
        status, error = OutcomeStatus.OK, None
        if end.exit_code != 0:
            # Many programs print their errors to standard output.
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            last_lines = (line[:LINE_CHARS] for line in lines[-LAST_LINES:])
            status, error = OutcomeStatus.FAILED, "\n".join([describe_exit(end), *last_lines])
        # A command reports nothing about the end of its turn except its exit code.
        evidence = Evidence(has_text=bool(output))
        return Outcome(
            status=status, output=output, cut_from_bytes=cut_bytes, error=error, evidence=evidence
        )


def _expand_program(program: str) -> str:
    return sys.executable if program == "{python}" else program
