from __future__ import annotations

from sequencer.files.keys import known_keys
from sequencer.project.schema import Schema, StepDefaults


def test_what_holds_the_fields_beside_others_is_no_key() -> None:
    of_role = known_keys(Schema, ("teams", "roles", "tester"))
    assert {"writes", "budget", "model", "tools"} <= set(of_role)
    assert "step" not in of_role


def test_known_keys() -> None:
    assert known_keys(Schema, ("workflow",)) == ("name", "review_every_n")
    assert set(known_keys(Schema, ())) == set(Schema.model_fields)
    assert known_keys(Schema, ("agent", "roles")) == ()
    assert known_keys(Schema, ("nowhere",)) == ()
    hidden = set(StepDefaults.model_fields) - set(known_keys(Schema, ("step_defaults",)))
    of_one_step = {
        "name",
        "description",
        "prompt",
        "text",
        "agent",
        "requires_approval",
        "approval",
        "validation",
        "retry",
    }
    assert hidden == of_one_step
