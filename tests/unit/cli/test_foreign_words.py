"""No sentence of a library, and no object of Python's, reaches a person who made a mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from sequencer.cli.program import COMMANDS, make_root_group
from sequencer.errors import ConfigurationError, SequencerError
from sequencer.files.keys import iter_leaves
from sequencer.files.yamlfile import KeyPath
from sequencer.frozen.base import Frozen
from sequencer.frozen.fields import ValidationError
from sequencer.model.step import Step
from sequencer.plugins.posting.options import SinkOptions
from sequencer.project.agents import EXECUTORS
from sequencer.project.project import open_project
from sequencer.project.schema import Schema
from sequencer.project.settings import load
from tests.unit.cli.calling import call, project, state, worked

FOREIGN = re.compile(
    r"[Ii]nput should|is not a valid (integer|float|boolean)|is not in the range|is not one of '"
    r"|Choose from|No such option"
    r"|Invalid value|[Mm]issing (argument|option|parameter)|Got unexpected|requires an argument"
    r"|Value error|validation error|Field required|Extra inputs|(String|List|Tuple|Dict\w*) should"
    r"|pydantic|[a-z_]+_type\b|type=|input_value|<class|<function| object at 0x|instance of"
    r"|\b(tuple|dict|NoneType|bool|int|str|float)\b|\bTrue\b|\bFalse\b|\bNone\b"
    r"|\['|\{'|Traceback|[\w]+Error:|Unable to parse"
)
"""What click, pydantic and Python say about wrong values."""
WRONG: tuple[Any, ...] = (
    "text",
    -7,
    1.5,
    True,
    [],
    ["a", 3],
    {},
    {"k": {"l": 1}},
    "a\x07b",
    10**30,
)


def ensure_ours(text: str) -> None:
    found = FOREIGN.search(text)
    assert found is None, f"{found and found[0]!r} in: {text}"


def typed_options() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield verb, option or argument, and words that are wrong for it."""
    root = make_root_group()
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        assert command is not None
        for param in command.params:
            called = max(param.opts, key=len)
            is_option = isinstance(param, click.Option)
            before = (called,) if is_option else ()
            if isinstance(param, click.Option) and param.is_flag:
                yield name, called, (f"{called}=yes",)
            elif is_option:
                yield name, called, (called,)
            if isinstance(param.type, (click.IntRange, click.FloatRange, click.Choice)):
                for word in ("many", "1e99x", "", *(("-" + "9" * 20,) if is_option else ())):
                    yield name, called, (*before, word)
            elif param.type in (click.INT, click.FLOAT):
                yield name, called, (*before, "many")


MISTAKES = [*typed_options()]


@pytest.mark.slow
def test_wrong_options_of_every_command_are_refused_in_our_words(tmp_path: Path) -> None:
    assert len(MISTAKES) > 250
    for verb, option, words in MISTAKES:
        ended = call(tmp_path, verb, *words)
        assert ended.code == 2, (verb, words, ended)
        ensure_ours(ended.err)
        first = ended.err.splitlines()[0]
        assert first.startswith("error: "), (verb, words, first)
        assert option.lstrip("-").lower() in first.lower() or verb in first, (verb, words, first)


@pytest.mark.parametrize("verb", COMMANDS)
def test_unknown_options_and_extra_arguments_are_refused_in_our_words(
    tmp_path: Path, verb: str
) -> None:
    for words in (("--nosuch",), ("--nosuch=1",), *((("x",) * 9,) if verb != "start" else ())):
        ended = call(tmp_path, verb, *words)
        assert ended.code == 2, (words, ended)
        ensure_ours(ended.err)


def test_a_missing_argument_is_named_with_its_choices(tmp_path: Path) -> None:
    ended = call(tmp_path, "schedule")
    assert ended.code == 2
    assert ended.err.startswith("error: ACTION is missing: expected install, show, remove or print")
    assert "\t" not in ended.err


def test_a_wrong_folder_or_file_is_refused_in_our_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path)
    for words, told in (
        (("web", "nodir"), "DIR: there is no 'nodir'"),
        (("web", "file"), "DIR: 'file' is a file, but a folder is needed"),
        (("init", "file"), "DIR: 'file' is a file, but a folder is needed"),
        (("web", "--token-file", folder), "is a folder, but a file is needed"),
    ):
        ended = call(tmp_path, *words)
        assert (ended.code, ended.out) == (2, "")
        assert told in ended.err, (words, ended.err)
        ensure_ours(ended.err)


def nested(values: dict[KeyPath, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in values.items():
        here = made
        for part in path[:-1]:
            below = here.setdefault(str(part), {})
            if not isinstance(below, dict):
                break
            here = below
        else:
            here[str(path[-1])] = value
    return made


def refusals(folder: Path, said: dict[str, Any]) -> list[ConfigurationError]:
    (folder / "orchestration.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    try:
        load(folder, env={})
    except ConfigurationError as error:
        return [one for one in error.each if isinstance(one, ConfigurationError)]
    return []


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_wrong_value_of_any_key_is_refused_in_our_words_with_its_line(
    tmp_path: Path, wrong: Any
) -> None:
    everything = nested({path: wrong for path, _ in iter_leaves(Schema)})
    fields = {name: wrong for name in Step.model_fields if name != "name"}
    everything |= {"workflows": {"w": {"steps": [{"name": "a", **fields}, wrong]}}}
    found = refusals(tmp_path, everything)
    assert found
    for error in found:
        ensure_ours(str(error))
        assert re.match(r".*orchestration\.yaml:\d+:\d+", error.where or ""), error


@pytest.mark.slow(sample=2)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_wrong_option_of_any_agent_is_refused_in_our_words(tmp_path: Path, wrong: Any) -> None:
    for kind, recipe in EXECUTORS.items():
        form = getattr(import_module(recipe.module), recipe.options)
        for option in form.model_fields:
            said = {"agents": {"one": {"kind": kind, option: wrong}}}
            found = refusals(tmp_path, said)
            if not found:
                try:
                    open_project(tmp_path, trust=True, environment={}).agents.build("one")
                except SequencerError as refused:
                    found = [one for one in refused.each if isinstance(one, ConfigurationError)]
            for error in found:
                ensure_ours(str(error))


@pytest.mark.parametrize("kind", [Step, SinkOptions])
def test_the_library_refuses_wrong_values_in_our_words(kind: type[Frozen]) -> None:
    for name in kind.model_fields:
        for wrong in WRONG:
            try:
                kind.model_validate({"name": "a", "kind": "jsonl", name: wrong})
            except ValidationError as refused:
                ensure_ours(str(refused))


def test_set_refuses_a_wrong_value_and_shows_it(tmp_path: Path) -> None:
    folder = worked(tmp_path / "p", 1)
    before = state(folder)
    refused = call(folder, "set", "step_index=abc")
    assert refused.code != 0
    assert "step_index: expected a whole number, not 'abc'" in refused.err
    ensure_ours(refused.err)
    assert state(folder) == before


def test_all_wrong_options_of_an_agent_are_reported_with_their_lines(tmp_path: Path) -> None:
    folder = project(
        tmp_path / "p",
        "steps: [a]\nagent: sh\nagents:\n  sh:\n    kind: command\n    argv: echo hi\n"
        "    argvv: [x]\n",
        "a.md",
    )
    said = call(folder, "check").out
    assert "orchestration.yaml:6:5: agents.sh.argv: " in said
    assert "expected a list, not 'echo hi'" in said
    assert "orchestration.yaml:7:5: agents.sh.argvv: " in said
    assert "did you mean 'argv'?" in said


def test_unknown_keys_are_named_where_a_word_is_also_allowed(tmp_path: Path) -> None:
    wrong = {"name": "a", "complete_when": {"fil": "x"}, "tools": {"reed": True}}
    said = "\n".join(map(str, refusals(tmp_path, {"steps": [wrong]})))
    assert "steps[0].complete_when: unknown key 'fil'\n  did you mean 'file'?" in said
    assert "steps[0].tools.reed: the key should be 'read', 'write'" in said
