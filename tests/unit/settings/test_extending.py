from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.settings.loading import loaded, refusal

EXTENDING = """
agents:
  tests: {kind: command, argv: [make, test]}
workflows:
  my-dev:
    extends: full-development
    replace:
      verifications: {executor: tests, validation: {max_attempts: 2}}
    before: {git-gh: [security-review]}
    after: {coding-activity: [{name: x, prompt: look.md, timeout_s: 60}]}
    remove: [concise-summary]
  full-development:
    extends: full-development
    replace: {concise-summary: {prompt: subroutines/verbose-summary.md}}
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        (
            "security-review]",
            "{name: s, nam: x}]",
            "9:33: workflows.my-dev.before.git-gh[0]",
            "'nam'",
        ),
        ("executor: tests", "exec: tests", "8:23: workflows.my-dev.replace.verifications", "exec"),
        ("git-gh:", "git:", "9:14: workflows.my-dev.before.git", "known full-development steps"),
        ("max_attempts: 2", "max_attempts: 0", "8:53: ", "greater than or equal to 1"),
        ("[concise-summary]", "[summary]", "11:14: workflows.my-dev.remove[0]", "did you mean"),
        ("extends: full-development\n    rep", "extends: full\n    rep", "6:5: ", "unknown workfl"),
        ("executor: tests", "executor: test", "8:23: ", "did you mean 'tests'"),
        ("prompt: look.md", "prompt: ../look.md", "10:41: ", "'..' in it"),
        ("{prompt: sub", "{prompt: /sub", "14:33: ", "is absolute"),
        ("executor: tests", "requires_approval: false, approval: {}", "8:7: ", "can't be changed"),
        ("[security-review]", "[verifications]", "5:3: workflows.my-dev", "twice: verifications"),
        ("extends: full-development\n    rep", "rep", "5:3: workflows.my-dev", "without extends"),
        (
            "remove: [concise-summary]",
            "steps: [a]",
            "5:3: workflows.my-dev",
            "steps can't stand beside extends",
        ),
    ],
)
def test_a_wrong_change_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    assert old in EXTENDING
    error = refusal(tmp_path, EXTENDING.replace(old, new, 1))
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)


def test_a_circle_of_workflows_is_refused_at_its_place(tmp_path: Path) -> None:
    text = "workflows:\n  a: {extends: b}\n  b: {extends: a}\n"
    error = refusal(tmp_path, text)
    assert str(error.where).endswith("orchestration.yaml:2:7: workflows.a.extends")
    assert "'a' extends 'b', 'b' extends 'a'" in error.message


def test_feedback_has_to_lead_back(tmp_path: Path) -> None:
    text = "workflows:\n  d: {extends: debugger-full, remove: [debugger-reproduction]}\n"
    error = refusal(tmp_path, text)
    assert "goes to step 'debugger-reproduction', which does not come before it" in error.message
    assert str(error.where).endswith("orchestration.yaml:2:3: workflows.d")
    gate = "{name: gate, requires_approval: true, approval: {feedback_to: %s}}"
    steps = f"workflows: {{w: {{kind: procedure, steps: [a, {gate}, b]}}}}"
    assert "'gate' goes to step 'b'" in refusal(tmp_path, steps % "b").message
    for target in ("a", "gate"):
        assert loaded(tmp_path, steps % target).workflows["w"].steps[1].approval is not None
