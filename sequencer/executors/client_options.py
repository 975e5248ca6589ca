"""What the entries of all command-line clients have in common, and how they are started.

An entry names a program and says in the client's own words what it may do. Nothing here
has a default that would switch a client's permission checks off.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from sequencer.errors import StorageFailed
from sequencer.executors.client_limits import DEFAULT_WAIT_S
from sequencer.executors.prices import ModelPrice
from sequencer.executors.protocol import StepRequest
from sequencer.model.step import ModelName
from sequencer.store.journal_file import open_new


class ClientOptions(BaseModel):
    """Keys of every ``agents: {NAME: {kind: CLIENT, …}}``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str = Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")
    """Name on PATH, or a path."""
    model: ModelName | None = None
    """For steps that name none; without it the client's own default."""
    extra_args: tuple[str, ...] = ()
    """Arguments for the client, before those that the step asks for."""
    env: dict[str, str] = {}
    """Variables for the agent, beside the allow-listed ones."""
    pass_env: tuple[str, ...] = ()
    """Names of further variables of this process that the agent gets."""
    fail_on_denial: bool = False
    """A refused tool call fails the step; otherwise it is a warning."""
    limit_wait_s: float = Field(default=DEFAULT_WAIT_S, gt=0, le=86_400)
    """When to ask again after a limit whose end the client does not tell."""
    prices: dict[str, ModelPrice] = {}
    """By model, in USD per million tokens; those of the project are added."""


def permission_words(options: ClientOptions, words: tuple[str, ...]) -> list[str]:
    """Return the names of the arguments in *options* that are among *words*: they say it already.

    Not their values, which may be settings with secrets.
    """
    names = [argument.partition("=")[0] for argument in options.extra_args]
    return [name for name in names if name in words]


def missing_program(name: str, options: ClientOptions, install: str) -> list[str]:
    """Return a problem if the program of agent *name* can't be found, else nothing."""
    if shutil.which(options.program, path=options.env.get("PATH")):
        return []
    where = "is not a program" if "/" in options.program else "is not on PATH"
    return [f"agents.{name}: {options.program!r} {where}; {install}"]


SYSTEM_PROMPT = "system-prompt.md"
APPENDED_PROMPT = "append-system-prompt.md"


def prompt_path(request: StepRequest, name: str) -> Path:
    """Return where the system prompt called *name* is written for this attempt.

    A system prompt goes into a file and not into an argument: an argument ends at
    128 KiB, and every user of the machine can read it.
    """
    return request.result_path.parent / name


def write_files(request: StepRequest, more: Mapping[str, str]) -> None:
    """Write the request's system prompts, and *more* by name, to where `prompt_path` says.

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
        path = prompt_path(request, name)
        try:
            with open_new(path) as file:
                file.write(text.encode())
        except OSError as error:
            message = f"can't be written: {error.strerror or error}"
            raise StorageFailed(message, where=str(path)) from error
