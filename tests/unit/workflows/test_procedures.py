from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from sequencer.errors import UnknownName
from sequencer.model.workflow import Workflow
from sequencer.plugins.requests.routing import PROCEDURE_OF, SYSTEM_PROMPTS
from sequencer.workflows.registry import PROCEDURES, builtin_procedure

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
TEMPLATE = re.compile(r"\{\{\s*(.*?)\s*\}\}")


BUILT = [builtin_procedure(name) for name in PROCEDURES]
ALL = {step.name: step for made in BUILT for step in made.steps}


def text_of(name: str) -> str:
    return (PROMPTS / name).read_text(encoding="utf-8")


def templates(name: str) -> set[str]:
    return set(TEMPLATE.findall(text_of(name)))


def test_each_procedure_has_its_steps() -> None:
    assert {made.name: " ".join(s.name for s in made.steps) for made in BUILT} == STEPS
    assert {made.kind for made in BUILT} == {"procedure"}
    assert builtin_procedure("plan-mode") is builtin_procedure("plan-mode")
    assert set(PROCEDURE_OF.values()) <= PROCEDURES.keys()
    with pytest.raises(UnknownName, match="did you mean 'plan-mode'") as refused:
        builtin_procedure("plan-mod")
    assert refused.value.known == tuple(sorted(PROCEDURES))


def test_every_system_prompt_is_packaged() -> None:
    for entry in SYSTEM_PROMPTS.values():
        assert entry.prompt is not None
        assert text_of(entry.prompt)


@pytest.mark.parametrize("procedure", BUILT, ids=lambda made: made.name)
def test_each_is_described_and_uses_only_outputs_of_earlier_steps(
    procedure: Workflow,
) -> None:
    names = [step.name for step in procedure.steps]
    said = [procedure.description]
    for step in procedure.every_step:
        said.append(step.description)
        before = names[: names.index(step.name)] if step.name in names else names
        fillable = {f"steps.{name}.output" for name in before} | ({"output"} if before else set())
        if step.name == "validation-fixer":
            fillable |= {"validation.reason", "validation.round", "validation.earlier"}
        assert templates(step.prompt_name) <= fillable, step.name
        if step.approval is not None:
            # Feedback leads back, or a rejected analysis would never be made again.
            assert names.index(str(step.approval.feedback_to)) <= names.index(step.name)
    assert all(0 < len(text) <= 60 and text[0].isupper() for text in said), procedure.name


@pytest.mark.parametrize(
    ("name", "asked_for"),
    [
        *((name, {"output"}) for name in ("git-gh", "concise-summary", "verbose-summary")),
        ("verifications", {"output"}),
        ("validation-fixer", {"validation.reason", "validation.round", "validation.earlier"}),
    ],
)
def test_prompts_shared_by_procedures_use_only_the_last_output(
    name: str, asked_for: set[str]
) -> None:
    assert templates(f"subroutines/{name}.md") == asked_for


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
def test_a_prompt_states_what_its_step_must_not_do(name: str, forbidden: str) -> None:
    text = text_of(f"subroutines/{name}.md")
    assert forbidden in text.split("\n## DO NOT\n")[1].split("\n## ")[0]


def test_every_prompt_has_a_section_on_what_not_to_do() -> None:
    assert '{"pass": true, "reason": ' in text_of("subroutines/verifications.md")
    for path in sorted((PROMPTS / "subroutines").iterdir()):
        assert path.stem in {*ALL, "validation-fixer", "verbose-summary"}, path
        text = path.read_text(encoding="utf-8")
        assert text.count("\n## DO NOT\n") == 1, path
        assert len(text.splitlines()) >= 15, path


@pytest.mark.parametrize("folder", ["subroutines", "system"])
def test_the_projects_own_prompts_equal_the_packaged_ones(folder: str) -> None:
    packaged = {path.name: path.read_bytes() for path in (PROMPTS / folder).iterdir()}
    own = {path.name: path.read_bytes() for path in (OWN / folder).iterdir()}
    assert own == packaged
    assert len(own) >= 5
