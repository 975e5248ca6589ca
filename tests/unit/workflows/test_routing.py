from __future__ import annotations

import json
import time

import pytest

from sequencer.errors import StepFailed
from sequencer.model.fields import ValidationError
from sequencer.model.head import Claim, Head, Owner, Session
from sequencer.model.line.order import describe
from sequencer.workflows.registry import Registry
from sequencer.workflows.router import (
    RouterMode,
    RouterRefused,
    RouterSettings,
    allowed_prompts,
    parse_answer,
    router_input,
    shown,
)

ALLOWED = frozenset({"main.md", "reviewer.md", "team/plan.txt"})


@pytest.mark.parametrize(
    ("written", "mode"),
    [
        ("router_default", RouterMode.DEFAULT),
        ("default", RouterMode.DEFAULT),
        ("router", RouterMode.DEFAULT),
        ("router_first", RouterMode.FIRST),
        ("router-first", RouterMode.FIRST),
        (" First ", RouterMode.FIRST),
        ("ROUTER_ONLY", RouterMode.ONLY),
        ("router-only", RouterMode.ONLY),
        ("only", RouterMode.ONLY),
    ],
)
def test_the_names_of_the_modes(written: str, mode: RouterMode) -> None:
    assert RouterSettings.model_validate({"mode": written}).mode is mode


@pytest.mark.parametrize("written", ["", "sometimes", 1, None])
def test_other_modes_are_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        RouterSettings.model_validate({"mode": written})


def test_an_allowlist_replaces_them() -> None:
    router = RouterSettings(allowlist=("debug", "team/plan.txt"))
    allowed = allowed_prompts(Registry().get("standard"), router)
    assert allowed == {"debug.md", "team/plan.txt"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "is empty"),
        (" \n\t\n", "is empty"),
        ("main.md\nreviewer.md", "has 2 lines"),
        ("main.md\x0breviewer.md", "has 2 lines"),
        ("main.md\u2028reviewer.md", "has 2 lines"),
        ("Main.md", "not an allowed"),
        ("MAIN", "not an allowed"),
        ("./main.md", "not an allowed"),
        ("prompts/main.md", "not an allowed"),
        ("../main.md", "not an allowed"),
        ("team/../main.md", "not an allowed"),
        ("/work/prompts/main.md", "not an allowed"),
        ("plan.txt", "not an allowed"),
        ("- main.md", "not an allowed"),
        ("`main.md`", "not an allowed"),
        ('["main.md"]', "not an allowed"),
        ("main.md\0", "not an allowed"),
        ("main.md; rm -rf /", "not an allowed"),
        ("$(main.md)", "not an allowed"),
        ("ma\u0131n.md", "not an allowed"),
        ("supervisor.md", "not an allowed"),
    ],
)
def test_a_wrong_answer_fails_the_step_and_is_shown(answer: str, problem: str) -> None:
    with pytest.raises(RouterRefused, match=problem) as refused:
        parse_answer(answer, ALLOWED)
    assert isinstance(refused.value, StepFailed)
    assert refused.value.exit_code == 1
    assert shown(answer) in str(refused.value)
    assert "main.md, reviewer.md, team/plan.txt" in str(refused.value)


@pytest.mark.parametrize("piece", ["x", "main.md\n", "\n", "\0", "\x1b[2J"])
def test_ten_megabytes_are_refused_at_once_and_cut(piece: str) -> None:
    answer = piece * (10_000_000 // len(piece))
    started = time.perf_counter()
    with pytest.raises(RouterRefused) as refused:
        parse_answer(answer, ALLOWED)
    assert time.perf_counter() - started < 0.5
    assert len(str(refused.value)) < 2_000
    assert "\x1b" not in str(refused.value)


def test_the_router_is_told_the_state_without_claims_and_session() -> None:
    owner = Owner(host="h", boot_id="b", pid_ns="p", pid=1, pid_start=2, nonce="n")
    claim = Claim(
        token=1, step="main", step_index=1, attempt=1, owner=owner, claimed_at="t", ttl_s=60
    )
    head = Head.model_validate(
        {
            "run_id": "r",
            "workflow_name": "standard",
            "workflow_digest": "d",
            "step_index": 1,
            "expected_step": "main",
            "last_update": "2026-11-21T00:00:00Z",
            "claims": (claim,),
            "session": Session(executor="claude", id="private"),
            "note": "größer",
        }
    )
    text = router_input(head, describe(Registry().get("standard"), 1), ALLOWED)
    told = json.loads(text)
    assert (told["step_index"], told["next"]["step"], told["note"]) == (1, "main", "größer")
    assert told["allowed_prompts"] == sorted(ALLOWED)
    assert "private" not in text
    assert "claims" not in told
    assert text.endswith("}\n")
