"""What models and agents say, and the plain rules that nothing they say may bend."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from sequencer import Retry, RunLimits, Step, Usage, Workflow, resolve
from sequencer.errors import TooManyFailures
from sequencer.testing import ScratchProject
from tests.contract.store_cases import new_head
from tests.property.amounts import FEW, RULES, for_all, in_memory
from tests.property.router_answers import answers, around, words
from tests.unit.cli.calling import call, state

# --- the router --------------------------------------------------------------------


class Quoting(yaml.SafeDumper):
    """Quotes texts: 0E0 is a number to whoever reads YAML 1.2, and none to PyYAML."""


Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def routed(folder: Path, answer: str) -> Path:
    """Write a project whose router answers *answer*, with a prompt outside the list."""
    (folder / "prompts").mkdir(parents=True)
    for name in ("router", "supervisor", "main", "secret"):
        (folder / "prompts" / f"{name}.md").write_text(f"Do {name}.\n")
    outcomes = [{"status": "ok", "output": answer}, {"status": "ok", "output": "done"}]
    document = {
        "workflow": {"name": "standard"},
        "router": {"enabled": True, "prompt": "router.md"},
        "agent": {"default": "canned"},
        "agents": {"canned": {"kind": "scripted", "outcomes": outcomes}},
    }
    (folder / "orchestration.yaml").write_text(yaml.dump(document, Dumper=Quoting))
    return folder


def test_a_step_runs_an_allowed_prompt_or_fails(tmp_path: Path) -> None:
    made = iter(range(10**6))

    def check(answer: str) -> None:
        folder = routed(tmp_path / str(next(made)), answer)
        ran = call(folder, "run", "--max-steps", "1")
        head = state(folder)
        if ran.code == 0:
            assert head["step_index"] == 1
            assert head["last_prompt"] in ("main.md", "supervisor.md")
            # No answer leaves the workflow's own prompt in place.
            assert answer.strip().removesuffix(".md") in ("main", "supervisor", "")
            return
        assert ran.code == 1, ran.err
        assert (head["step_index"], head["failures_in_row"]) == (0, 1)

    short = st.lists(around | words | st.just("supervisor"), max_size=3).map("".join)
    for_all(check, short | words | answers, examples=FEW)


# --- plain rules -------------------------------------------------------------------


def walk(workflow: Workflow) -> list[Step]:
    """Return the first two periods of *workflow*, cycle by cycle."""
    found: list[Step] = []
    every = workflow.review.every if workflow.review else 0
    for cycle in range(1, 2 * max(every, 1) + 1):
        is_review = workflow.review is not None and every > 0 and cycle % every == 0
        for step in workflow.steps:
            found += [workflow.review.step if is_review and workflow.review else step]
    return found


def test_a_workflow_as_written_resolves_like_a_loop() -> None:
    with in_memory() as folder:
        ensure_it_resolves_like_a_loop(folder)


def ensure_it_resolves_like_a_loop(folder: Path) -> None:
    def check(length: int, every: int, index: int) -> None:
        steps = [f"s{number}" for number in range(length)]
        raw = {"steps": steps, "review": {"every": every, "step": "check"}}
        run = ScratchProject(folder, {"workflow": "mine", "workflows": {"mine": raw}}).run()
        workflow = run.workflow
        walked = walk(workflow)
        place = index % len(walked)
        assert resolve(workflow, index) == walked[place]
        assert resolve(workflow, place) == walked[place]
        (told,) = run.next(1, index)
        assert told.review == (walked[place].name == "check")
        assert (told.step, told.iteration) == (walked[place].name, index + 1)

    lengths, cadences = st.integers(1, 12), st.integers(-5, 40)
    indexes = st.integers(0, 2**63 - 1) | st.integers(0, 500)
    for_all(check, lengths, cadences, indexes, examples=RULES)


def test_a_delay_is_bounded_and_never_shrinks() -> None:
    def check(backoff: str, initial: float, most: float, failures: list[int]) -> None:
        retry = Retry.model_validate(
            {"backoff": backoff, "initial_delay_s": initial, "max_delay_s": most}
        )
        ordered = sorted(failures)
        delays = [retry.delay_s(number) for number in ordered]
        assert all(0 <= delay <= most for delay in delays)
        assert all(earlier <= later for earlier, later in pairwise(delays))
        assert retry.delay_s(1) == min(initial, most)
        expected = {
            "fixed": initial,
            "linear": sum(islice(iter(lambda: initial, None), 3)),
            "exponential": initial * 4,
        }
        assert retry.delay_s(3) == pytest.approx(min(expected[backoff], most))

    kinds = st.sampled_from(["fixed", "linear", "exponential"])
    counts = st.lists(st.integers(1, 200) | st.integers(1, 2**63), min_size=2, max_size=6)
    initial, most = st.floats(0, 86_400), st.floats(0, 604_800)
    for_all(check, kinds, initial, most, counts, examples=RULES)


def refuses(limits: RunLimits, **counters: int) -> bool:
    try:
        limits.ensure_may_try(new_head(**counters))
    except TooManyFailures as refused:
        assert refused.exit_code == 3  # noqa: PT017 (only some inputs are refused)
        return True
    return False


def test_a_limit_once_reached_stays_reached() -> None:
    counts, amounts = st.integers(0, 50), st.floats(0, 1e6)
    usages = st.builds(Usage, steps=counts, cost_usd=amounts, seconds=amounts)
    most = st.fixed_dictionaries(
        {},
        optional={
            "steps": st.integers(1, 60),
            "cost_usd": st.floats(0.01, 1e6),
            "seconds": st.floats(0.01, 1e6),
            "failures_in_row": st.integers(1, 60),
            "attempts": st.integers(1, 60),
        },
    )

    def check(given: dict[str, float], used: Usage, more: Usage, failed: int, tried: int) -> None:
        limits = RunLimits.model_validate(given)
        before, after = (
            limits.describe_reached(new_head(usage=u)) for u in (used, used.plus(more))
        )
        passed = [
            used.steps >= given.get("steps", 10**9),
            used.cost_usd >= given.get("cost_usd", 10**9),
            used.seconds >= given.get("seconds", 10**9),
        ]
        assert (before is not None) == any(passed)
        # The sums are rounded, so a step of less than a millionth may not show.
        assert before is None or after is not None or used.plus(Usage()) != used
        is_over = refuses(limits, failures_in_row=failed, attempt=tried)
        assert is_over == (failed >= limits.failures_in_row or tried >= limits.attempts)
        assert not is_over or refuses(limits, failures_in_row=failed + 1, attempt=tried)
        assert not is_over or refuses(limits, failures_in_row=failed, attempt=tried + 1)

    for_all(check, most, usages, usages, counts, counts, examples=RULES)
