from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.settings.loading import refusal

ROUTING = """
routing:
  labels: {debugger: [defect]}
  system_prompts:
    scoper: {labels: [rfc]}
    detective: {labels: [defect], prompt: roles/detective.md}
  classifier: quick
  timeout_s: 5
  fallback: mine
  procedures: {code: mine, question: plan-mode}
  substitutions: {"https://linear.app/linear/": "https://linear.app/acme/"}
agents: {quick: {kind: rehearsal}}
workflows: {mine: {kind: procedure, steps: [a]}, loop: {steps: [a]}}
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "said"),
    [
        ("fallback: mine", "fallback: loop", "9:3: routing.fallback", "'loop' is a cycle"),
        ("fallback: mine", "fallback: my", "9:3: routing.fallback", "unknown procedure 'my'"),
        ("code: mine", "code: standard", "10:16: routing.procedures.code", "is a cycle"),
        ("code: mine", "codes: mine", "10:16: routing.procedures.codes", "'question'"),
        ("classifier: quick", "classifier: quik", "7:3: routing.classifier", "mean 'quick'"),
        ("roles/det", "../det", "6:35: routing.system_prompts.detective.prompt", "'..' in it"),
        (", prompt: roles/detective.md", "", "4:3: routing.system_prompts", "needs labels and a"),
        ("[rfc]", "rfc", "5:14: routing.system_prompts.scoper.labels", "expected a list"),
        ("timeout_s: 5", "timeout_s: -5", "8:3: routing.timeout_s", "greater than 0"),
        ("labels: {deb", "label: {deb", "3:3: routing", "unknown key 'label'"),
        ("{debugger: [d", "{builder: [d", "3:12: routing.labels", "unknown key 'builder'"),
        ("substitutions: {", 'substitutions: {"": x, ', "11:19: routing.subst", "at least 1 char"),
    ],
)
def test_wrong_routing_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, place: str, said: str
) -> None:
    text = ROUTING.replace(old, new, 1)
    assert text != ROUTING
    error = refusal(tmp_path, text)
    assert f"orchestration.yaml:{place}" in str(error.where)
    assert said in str(error)
