"""Each point changes what it should, in order; what a hook does wrong fails its step only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.hooking import HookFailed, Hooks, NoHooks
from sequencer.model.outcome import Decision, Move
from sequencer.model.step import Step
from tests.unit.hooks.hook_files import HEAD, OUTCOME, REQUEST, WORKFLOW, context, loaded


def all_answers(hooks: Hooks, project: Path, *, text: str | None = "text") -> list[object]:
    """Ask at every point and return the answers."""
    facts = context(project)
    hooks.completed(facts, HEAD)
    return [
        hooks.procedure(REQUEST, "full-development"),
        hooks.steps(REQUEST, WORKFLOW),
        hooks.prompt(facts, text or ""),
        hooks.system_prompt(facts, text),
        hooks.model(facts, text),
        hooks.transition(facts, OUTCOME),
    ]


OPINIONLESS = """
@hookimpl
def sequencer_procedure(request, chosen): return None
@hookimpl
def sequencer_steps(request, workflow): return None
@hookimpl
def sequencer_prompt(context, text): return None
@hookimpl
def sequencer_system_prompt(context, text): return None
@hookimpl
def sequencer_model(context, model): return None
@hookimpl
def sequencer_transition(context, outcome): return None
@hookimpl
def sequencer_completed(context, head): return None
"""


@pytest.mark.parametrize("text", ["text", None])
def test_hooks_without_an_opinion_change_nothing(tmp_path: Path, text: str | None) -> None:
    hooks = loaded(tmp_path, OPINIONLESS)
    assert all_answers(hooks, tmp_path, text=text) == all_answers(NoHooks(), tmp_path, text=text)


@pytest.mark.parametrize("point", ["procedure", "model", "transition"])
def test_the_first_choosing_hook_with_an_opinion_wins(tmp_path: Path, point: str) -> None:
    def source(answer: str) -> str:
        said = f"sequencer.Decision(sequencer.Move.GOTO, 'coding', {answer!r})"
        said = said if point == "transition" and answer != "None" else repr(answer)
        said = "None" if answer == "None" else said
        return f"@hookimpl\ndef sequencer_{point}():\n    return {said}\n"

    hooks = loaded(tmp_path, source("None"), source("second"), source("third"))
    answers = {
        "procedure": hooks.procedure(REQUEST, "chosen"),
        "model": hooks.model(context(tmp_path), "m"),
        "transition": hooks.transition(context(tmp_path), OUTCOME),
    }
    expected = {"procedure": "chosen", "model": "m", "transition": None}
    decided = Decision(Move.GOTO, "coding", "second")
    expected[point] = decided if point == "transition" else "second"  # type: ignore[assignment]
    assert answers == expected


@pytest.mark.parametrize("point", ["prompt", "system_prompt"])
def test_each_writing_hook_gets_the_text_of_the_one_before(tmp_path: Path, point: str) -> None:
    def source(mark: str) -> str:
        return f"@hookimpl\ndef sequencer_{point}(text):\n    return (text or '') + {mark!r}\n"

    hooks = loaded(tmp_path, source("1"), OPINIONLESS, source("3"))
    asked = getattr(hooks, point)
    assert asked(context(tmp_path), "0") == "013"
    if point == "system_prompt":
        assert asked(context(tmp_path), None) == "13"


STEPS = """
@hookimpl
def sequencer_steps(request, workflow):
    steps = [step for step in workflow.steps if step.name != "summary"]
    if "bug" in request.labels:
        steps.insert(0, sequencer.Step(name="reproduce", model="opus"))
    return KIND(steps)
"""


@pytest.mark.parametrize(
    "kind", ["list", "tuple", "lambda s: sequencer.Workflow(workflow.name, s, kind=workflow.kind)"]
)
def test_hooks_can_add_and_remove_steps(tmp_path: Path, kind: str) -> None:
    made = loaded(tmp_path, STEPS.replace("KIND", f"({kind})")).steps(REQUEST, WORKFLOW)
    assert [step.name for step in made.steps] == ["reproduce", "coding", "verifications"]
    assert (made.name, made.kind, made.steps[0].model) == (WORKFLOW.name, "procedure", "opus")
    assert len(WORKFLOW.steps) == 3


def test_a_hook_knows_the_step_the_run_and_the_request(tmp_path: Path) -> None:
    source = """
    @hookimpl
    def sequencer_prompt(context):
        facts = (context.run_id, context.step.name, context.attempt, context.labels, context.steps)
        return f"{facts} {context.project}"
    """
    said = loaded(tmp_path, source).prompt(context(tmp_path, attempt=3), "")
    steps = ("coding", "verifications", "summary")
    assert said == f"{('r1', 'verifications', 3, ('bug',), steps)} {tmp_path}"
    assert "()" in loaded(tmp_path, source).prompt(context(tmp_path, request=None), "")


def test_completion_is_reported_to_all_hooks_even_if_one_fails(tmp_path: Path) -> None:
    def source(name: str, then: str) -> str:
        return (
            "import pathlib\n@hookimpl\ndef sequencer_completed(context, head):\n"
            f"    pathlib.Path(context.project, {name!r}).write_text(head.run_id)\n    {then}\n"
        )

    hooks = loaded(
        tmp_path, source("1", "return 'ignored'"), source("2", "1/0"), source("3", "raise KeyError")
    )
    with pytest.raises(HookFailed, match="ZeroDivisionError") as failed:
        hooks.completed(context(tmp_path), HEAD)
    assert [(tmp_path / name).read_text() for name in "123"] == ["r1"] * 3
    assert "KeyError" in failed.value.traceback


# --- exceptions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("ValueError('a\\nb')", "ValueError: a b"),
        ("SystemExit(0)", "SystemExit: 0"),
        ("GeneratorExit()", "GeneratorExit"),
        ("sequencer.SequencerError('own', hint='x')", "sequencer.errors.SequencerError: own"),
        ("BaseExceptionGroup('g', [ValueError(1)])", "ExceptionGroup: g"),
        ("RecursionError('deep')", "RecursionError: deep"),
    ],
)
def test_an_error_in_a_hook_fails_its_step_and_names_its_line(
    tmp_path: Path, raised: str, said: str
) -> None:
    source = (
        f"def inner():\n    raise {raised}\n\n@hookimpl\ndef sequencer_prompt(text):\n    inner()\n"
    )
    with pytest.raises(HookFailed) as failed:
        loaded(tmp_path, source).prompt(context(tmp_path), "secret prompt")
    error = failed.value
    assert error.where == f"{tmp_path / 'hooks0.py'}:5"
    assert error.message.startswith("hook sequencer_prompt raised ")
    assert said in error.message
    assert "\n" not in error.message
    assert error.exit_code == 1
    assert "in inner" in error.traceback
    assert "in sequencer_prompt" in error.traceback
    # Our own part of the way is nobody's business, nor is what the hook was given.
    assert "calling.py" not in error.traceback
    assert "secret prompt" not in str(error)


def test_a_keyboard_interrupt_passes_through(tmp_path: Path) -> None:
    source = "@hookimpl\ndef sequencer_prompt(text):\n    raise KeyboardInterrupt\n"
    with pytest.raises(KeyboardInterrupt):
        loaded(tmp_path, source).prompt(context(tmp_path), "")


# --- answers ------------------------------------------------------------------------


def answering(project: Path, point: str, answer: str) -> Any:
    hooks = loaded(project, f"@hookimpl\ndef sequencer_{point}():\n    return {answer}\n")
    facts: dict[str, tuple[object, ...]] = {
        "procedure": (REQUEST, "chosen"),
        "steps": (REQUEST, WORKFLOW),
        "transition": (context(project), OUTCOME),
    }
    return getattr(hooks, point)(*facts.get(point, (context(project), "given")))


LOOP = "{'$ref': '#'}"
WRONG_FIXER = "{'fixer': {'name': 'f', 'output': {'schema': {'type': 5}}}}"


@pytest.mark.parametrize(
    ("point", "answer", "said"),
    [
        ("procedure", "3", "3 (int), expected the name of a procedure"),
        ("procedure", "''", "expected the name of a procedure"),
        ("procedure", "'a\\nb'", "'a\\nb' (str), expected the name of a procedure"),
        ("steps", "'coding'", "'coding' (str), expected a Workflow, or a list or tuple of Step"),
        ("steps", "['coding']", "a value of type list, expected"),
        ("steps", "(s for s in ())", "a value of type generator, expected"),
        ("steps", "[]", "steps that do not make a workflow"),
        (
            "steps",
            "[sequencer.Step(name='a')] * 2",
            "steps that do not make a workflow: ",
        ),
        ("steps", "sequencer.Workflow('x', [sequencer.Step(name='a')])", "a cycle called 'x'"),
        (
            "steps",
            f"[sequencer.Step(name='a', output={{'schema': {LOOP}}})]",
            "a step with a wrong schema: step 'a': output.schema: the schema refers to itself",
        ),
        (
            "steps",
            f"[sequencer.Step(name='a', validation={WRONG_FIXER})]",
            "a step with a wrong schema: step 'f': output.schema.type",
        ),
        ("prompt", "b'bytes'", "a value of type bytes, expected text"),
        ("prompt", "['a']", "a value of type list, expected text"),
        ("prompt", "'a\\ud800'", "text that is not UTF-8 at character 1"),
        ("system_prompt", "0", "0 (int), expected text"),
        ("model", "'--dangerously-skip-permissions'", "does not start with '-'"),
        ("model", "'a\\nb'", "one printable line"),
        ("model", "''", "expected the name of a model"),
        ("model", "'m' * 201", "expected the name of a model"),
        ("model", "False", "False (bool), expected the name of a model"),
        ("transition", "'retry'", "'retry' (str), expected a sequencer.Decision"),
        ("transition", "sequencer.Move.RETRY", "expected a sequencer.Decision"),
        ("transition", "sequencer.Decision('retry')", "expected a sequencer.Decision"),
        ("transition", "sequencer.Decision(sequencer.Move.GOTO)", "a goto without the name"),
        (
            "transition",
            "sequencer.Decision(sequencer.Move.GOTO, 'codign')",
            "a goto to 'codign' (str), which is not a step; steps: coding, verifications, summary",
        ),
        ("transition", "sequencer.Decision(sequencer.Move.GOTO, 3)", "a goto to 3 (int)"),
        (
            "transition",
            "sequencer.Decision(sequencer.Move.RETRY, 'coding')",
            "a target ('coding' (str)) for retry, which takes none",
        ),
        ("transition", "sequencer.Decision(sequencer.Move.NEXT, None, 3)", "text as its reason"),
    ],
)
def test_an_invalid_answer_fails_the_step_and_names_its_hook(
    tmp_path: Path, point: str, answer: str, said: str
) -> None:
    with pytest.raises(HookFailed) as failed:
        answering(tmp_path, point, answer)
    error = failed.value
    assert error.message.startswith(f"hook sequencer_{point} answered ")
    assert said in error.message
    assert error.where == f"{tmp_path / 'hooks0.py'}:4"
    assert error.traceback


@pytest.mark.parametrize("move", list(Move))
def test_every_move_can_be_decided(tmp_path: Path, move: Move) -> None:
    target = "'coding'" if move is Move.GOTO else "None"
    answer = f"sequencer.Decision(sequencer.Move.{move.name}, {target}, 'a\\n  b\\ud800')"
    decided = answering(tmp_path, "transition", answer)
    assert decided == Decision(move, "coding" if move is Move.GOTO else None, "a b?")


# --- what hooks get -----------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "context.step_index = 0",
        "context.step.model = 'x'",
        "context.request.title = 'x'",
        "outcome.status = 'failed'",
    ],
)
def test_the_objects_hooks_get_are_frozen(tmp_path: Path, change: str) -> None:
    source = f"@hookimpl\ndef sequencer_transition(context, outcome):\n    {change}\n"
    with pytest.raises(HookFailed, match=r"frozen|FrozenInstanceError|immutable type"):
        loaded(tmp_path, source).transition(context(tmp_path), OUTCOME)


def test_a_hook_that_changes_a_mapping_changes_its_own_copy(tmp_path: Path) -> None:
    source = """
        @hookimpl
        def sequencer_prompt(context, text): context.step.agents.clear()
        @hookimpl
        def sequencer_transition(context, outcome): outcome.structured.clear()
        @hookimpl
        def sequencer_completed(context, head): head.params.clear()
    """
    agents = {"helper": {"description": "d", "prompt": "p"}}
    step = Step.model_validate({"name": "coding", "agents": agents})
    facts = context(tmp_path, step=step)
    hooks = loaded(tmp_path, source)
    hooks.prompt(facts, "text")
    hooks.transition(facts, OUTCOME)
    hooks.completed(facts, HEAD)
    assert list(step.agents or ()) == ["helper"]
    assert (OUTCOME.structured, HEAD.params) == ({"pass": True}, {"a": 1})
