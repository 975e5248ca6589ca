"""The parser of the command line takes every command that the documents tell to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from sequencer import Invocation
from sequencer.cli.program import make_root_group
from tests.project.documents import Fence, commands
from tests.project.test_docs import by_place, in_language


def sequencer_arguments(text: str) -> list[list[str]]:
    """Return the arguments of each call of sequencer in a command line."""
    found = []
    for part in re.split(r"&&|\|\||[|;()]| &", text):
        words = shlex.split(part.partition(" > ")[0], comments=True)
        if words and Path(words[0]).name == "sequencer":
            found.append(words[1:])
    return found


def parse(arguments: list[str]) -> None:
    """Parse *arguments* with the real commands, without running anything."""
    root = make_root_group()
    with root.make_context("sequencer", list(arguments), obj=Invocation()) as context:
        name, command, rest = root.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command is not None, name
        with command.make_context(name, rest, parent=context):
            pass


@pytest.mark.parametrize("fence", in_language("console", "sh"), ids=by_place)
def test_every_command_in_a_block_parses(fence: Fence) -> None:
    for command in commands(fence):
        for arguments in sequencer_arguments(command.text):
            try:
                parse(arguments)
            except click.UsageError as error:
                pytest.fail(f"{command.where}: {command.text}: {error.format_message()}")


def test_the_parser_of_commands_refuses_what_is_wrong() -> None:
    parse(["run", "--max-steps", "4"])
    for wrong in (["run", "--max-stepz", "4"], ["plan", "--count", "many"], ["status", "x", "y"]):
        with pytest.raises(click.UsageError):
            parse(wrong)
