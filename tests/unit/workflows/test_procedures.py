from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from sequencer.errors import UnknownName
from sequencer.model.step import Approval, Step
from sequencer.model.workflow import Workflow
from sequencer.workflows.builtin import (
    PROCEDURES,
    builtin_procedure,
    builtin_procedures,
    builtin_step,
    builtin_step_names,
)
from sequencer.workflows.definitions import with_fields
from sequencer.workflows.requests.options import PROCEDURE_OF, SHARED_PROMPT, SYSTEM_PROMPTS

PROMPTS = Path(str(files("sequencer").joinpath("builtin", "prompts")))
OWN = Path(__file__).parents[3] / "prompts"
STEPS = {
    "simple-question": "question-investigation question-answer",
    "documentation-edit": "primary git-gh concise-summary",
    "full-development": "coding-activity verifications git-gh concise-summary",
    "debugger-full": "debugger-reproduction get-approval debugger-fix verifications git-gh"
    " concise-summary",
    "orchestrator-full": "primary concise-summary",
    "plan-mode": "preparation plan-summary",
    "release": "release release-publish release-summary",
    "user-testing": "user-testing user-testing-summary",
}
ONE_REPLY = {
    "question-answer",
    "concise-summary",
    "verbose-summary",
    "plan-summary",
    "release-summary",
    "user-testing-summary",
}
TEMPLATE = re.compile(r"\{\{\s*(.*?)\s*\}\}")


def text_of(name: str) -> str:
    return (PROMPTS / name).read_text(encoding="utf-8")


def templates(name: str) -> set[str]:
    return set(TEMPLATE.findall(text_of(name)))


def steps_named(names: set[str]) -> list[Step]:
    return [builtin_step(name) for name in sorted(names)]


def test_the_procedures_and_their_steps() -> None:
    built = builtin_procedures()
    assert {name: " ".join(s.name for s in made.steps) for name, made in built.items()} == STEPS
    assert {made.kind for made in built.values()} == {"procedure"}
    assert all(made.name == name for name, made in built.items())


def test_a_procedure_is_built_once() -> None:
    assert builtin_procedure("plan-mode") is builtin_procedure("plan-mode")
    assert builtin_procedures()["plan-mode"] is builtin_procedure("plan-mode")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean 'plan-mode'") as refused:
        builtin_procedure("plan-mod")
    assert refused.value.known == tuple(sorted(PROCEDURES))
    with pytest.raises(UnknownName, match="unknown step 'git'"):
        builtin_step("git")


def test_every_step_has_its_own_prompt_file() -> None:
    for name in builtin_step_names():
        assert builtin_step(name).prompt == f"subroutines/{name}.md"
        assert len(text_of(f"subroutines/{name}.md").splitlines()) >= 15


def test_which_steps_give_one_reply_without_thoughts_and_comments() -> None:
    for step in steps_named(set(builtin_step_names())):
        is_one = step.name in ONE_REPLY
        assert (step.suppress_thoughts, step.no_comment) == (is_one, is_one), step.name
        assert step.single_turn == (is_one or step.name == "get-approval"), step.name


def test_the_gates() -> None:
    gates = {step.name: step.approval for step in steps_named(set(builtin_step_names()))}
    assert {name: approval for name, approval in gates.items() if approval} == {
        "get-approval": Approval(feedback_to="debugger-reproduction"),
        "release": Approval(feedback_to="release"),
    }
    for made in builtin_procedures().values():
        names = [step.name for step in made.steps]
        for index, step in enumerate(made.steps):
            assert step.requires_approval == (step.approval is not None)
            if step.approval is not None:
                # Feedback leads back, or a rejected analysis would never be made again.
                assert names.index(str(step.approval.feedback_to)) <= index


def test_system_prompts() -> None:
    for step in steps_named(set(builtin_step_names())):
        assert step.system_from_labels == (step.name in {"primary", "coding-activity"})
        is_debugging = step.name.startswith("debugger-")
        expected = ("system/debugger.md", SHARED_PROMPT) if is_debugging else ()
        assert step.added_system_prompts == expected
        for name in expected:
            assert text_of(name)
    for entry in SYSTEM_PROMPTS.values():
        assert entry.prompt is not None
        assert text_of(entry.prompt)


def test_a_verification_that_fails_is_mended_and_repeated_at_most_three_times() -> None:
    validation = builtin_step("verifications").validation
    assert validation is not None
    assert (validation.max_attempts, validation.on_exhausted) == (4, "fail")
    assert validation.fixer is not None
    assert validation.fixer.prompt == "subroutines/validation-fixer.md"
    asked = text_of("subroutines/verifications.md")
    assert '{"pass": true, "reason": ' in asked
    asked_for = {"validation.reason", "validation.round", "validation.earlier"}
    assert templates("subroutines/validation-fixer.md") == asked_for


def test_no_step_needs_the_executor_of_the_step_before() -> None:
    assert not any(step.continue_session for step in steps_named(set(builtin_step_names())))


def test_every_word_has_a_procedure() -> None:
    assert set(PROCEDURE_OF.values()) <= PROCEDURES.keys()


def ran_before(procedure: Workflow, step: Step) -> list[str]:
    names = [each.name for each in procedure.steps]
    return names[: names.index(step.name)] if step.name in names else names


@pytest.mark.parametrize("procedure", builtin_procedures().values(), ids=lambda made: made.name)
def test_a_prompt_asks_for_no_output_that_may_not_be_there(procedure: Workflow) -> None:
    allowed = {"validation.reason", "validation.round", "validation.earlier"}
    for step in with_fields(procedure):
        before = ran_before(procedure, step)
        fillable = {f"steps.{name}.output" for name in before} | ({"output"} if before else set())
        if step.name == "validation-fixer":
            fillable |= allowed
        assert templates(step.prompt_name) <= fillable, step.name


@pytest.mark.parametrize("name", ["git-gh", "concise-summary", "verbose-summary", "verifications"])
def test_prompts_of_several_procedures_use_the_last_output_only(name: str) -> None:
    assert templates(f"subroutines/{name}.md") == {"output"}


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [
        ("coding-activity", "Do not commit, push, or open a pull request"),
        ("verifications", "Do not commit, push, or open a pull request"),
        ("validation-fixer", "Do not commit, push, or open a pull request"),
        ("debugger-fix", "Do not commit, push, or open a pull request"),
        ("debugger-reproduction", "Do not fix it yet"),
        ("release", "Do not publish"),
        ("preparation", "Do not change, create or delete a file"),
        ("question-investigation", "Do not change, create or delete a file"),
    ],
)
def test_what_a_step_must_not_do_is_said(name: str, forbidden: str) -> None:
    text = text_of(f"subroutines/{name}.md")
    assert forbidden in text.split("\n## DO NOT\n")[1].split("\n## ")[0]


def test_every_prompt_says_what_not_to_do() -> None:
    exempt = {"validation-fixer"}
    for path in sorted((PROMPTS / "subroutines").iterdir()):
        assert path.stem in {*builtin_step_names(), *exempt}, path
        assert path.read_text(encoding="utf-8").count("\n## DO NOT\n") == 1, path


@pytest.mark.parametrize("folder", ["subroutines", "system"])
def test_the_projects_own_prompts_are_those_that_come_along(folder: str) -> None:
    packaged = {path.name: path.read_bytes() for path in (PROMPTS / folder).iterdir()}
    own = {path.name: path.read_bytes() for path in (OWN / folder).iterdir()}
    assert own == packaged
    assert len(own) >= 5


def test_every_procedure_and_every_step_says_what_it_is_for() -> None:
    for procedure in builtin_procedures().values():
        said = [procedure.description, *(step.description for step in with_fields(procedure))]
        assert all(0 < len(text) <= 60 and text[0].isupper() for text in said), procedure.name
