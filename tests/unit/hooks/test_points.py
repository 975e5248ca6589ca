"""A function that looks like a hook is one, as its author means it, or is refused."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

from sequencer.engine.hooking import Hooks
from sequencer.errors import ConfigurationError
from sequencer.hooks.points import POINTS, HookPoints
from tests.unit.hooks.hook_files import context, loaded

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "hooks.md"


def refused(project: Path, source: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as found:
        loaded(project, source)
    return found.value


def test_every_question_of_the_engine_has_a_hook_point() -> None:
    asked = [name for name in vars(Hooks) if not name.startswith("_")]
    assert [f"sequencer_{name}" for name in asked] == list(POINTS)
    for name in asked:
        ours = list(signature(getattr(HookPoints, f"sequencer_{name}")).parameters)
        assert ours == list(signature(getattr(Hooks, name)).parameters), name


def test_the_page_lists_each_point_with_its_arguments() -> None:
    rows = re.findall(r"^\| `(\w+)\(([\w, ]+)\)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert [name for name, _ in rows] == list(POINTS)
    for name, listed in rows:
        arguments = [
            arg for arg in signature(getattr(HookPoints, name)).parameters if arg != "self"
        ]
        assert listed.split(", ") == arguments


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("@hookimpl\ndef sequencer_promt(text): pass\n", "did you mean 'sequencer_prompt'"),
        ("@hookimpl\ndef before_step(context): pass\n", "unknown hook 'before_step'"),
        ("@hookimpl(specname='nope')\ndef a(text): pass\n", "unknown hook 'nope'"),
        ("@hookimpl\ndef sequencer_prompt(ctx, text): pass\n", "unknown argument 'ctx'"),
        (
            "@hookimpl\ndef sequencer_model(context, text): pass\n",
            "known arguments: context, model",
        ),
        ("@hookimpl\ndef sequencer_prompt(text=''): pass\n", "it would never be passed"),
        ("@hookimpl\ndef sequencer_prompt(*, text): pass\n", "it would never be passed"),
        ("@hookimpl\ndef sequencer_prompt(text, /): pass\n", "it would never be passed"),
        ("@hookimpl\nasync def sequencer_prompt(text): pass\n", "async or a generator"),
        ("@hookimpl\ndef sequencer_steps(workflow):\n    yield 1\n", "async or a generator"),
        ("@hookimpl(wrapper=True)\ndef sequencer_prompt(text):\n    yield\n", "is a wrapper"),
        ("@hookimpl(hookwrapper=True)\ndef sequencer_prompt(text):\n    yield\n", "is a wrapper"),
        ("def sequencer_prompt(text): pass\n", "is not marked as a hook"),
        ("def sequencer_promt(text): pass\n", "is not marked as a hook"),
    ],
)
def test_a_hook_that_would_not_be_called_as_meant_is_refused_with_its_line(
    tmp_path: Path, source: str, said: str
) -> None:
    error = refused(tmp_path, source)
    assert said in str(error)
    assert str(error.where).startswith(f"{tmp_path / 'hooks0.py'}:4")


@pytest.mark.parametrize("source", ["", "x = 1\n", "def prompt(text): return text\n"])
def test_a_file_without_a_hook_is_refused(tmp_path: Path, source: str) -> None:
    error = refused(tmp_path, source)
    assert (error.message, error.where) == ("it has no hooks", "hooks0.py")
    assert "@sequencer.hookimpl" in str(error.hint)


def test_helpers_and_names_from_elsewhere_are_not_hooks(tmp_path: Path) -> None:
    source = """
    from sequencer.hooks.points import POINTS as sequencer_points

    def helper(text):
        return text.upper()

    @hookimpl
    def sequencer_prompt(text):
        return helper(text)
    """
    assert loaded(tmp_path, source).prompt(context(tmp_path), "a") == "A"


def test_a_hook_gets_only_the_arguments_it_asks_for(tmp_path: Path) -> None:
    source = """
    @hookimpl
    def sequencer_prompt():
        return "none"

    @hookimpl
    def sequencer_model(context, **more):
        assert more == {}
        return context.step.name
    """
    hooks = loaded(tmp_path, source)
    assert hooks.prompt(context(tmp_path), "a") == "none"
    assert hooks.model(context(tmp_path), None) == "verifications"
