from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sequencer.engine.prompt_context.earlier_outputs import read_earlier_outputs
from sequencer.errors import CorruptState, StorageFailed, UnsafeFolder
from sequencer.store import results


def fact(event: str, step: str, **outcome: Any) -> dict[str, Any]:
    return {"event": event, "step": step, "outcome": outcome}


@pytest.mark.parametrize(
    "name",
    [
        *("/proc/self/environ", "../../x", "results/../../x/output.txt", "state.json", "", 5, []),
        *("results/0-1/result.json", "results/0-1/../0-1/output.txt", "results/x/output.txt"),
        *("results/0-1-XYZ/output.txt", "/results/0-1/output.txt", "results/0-1/output.txt\n"),
    ],
)
def test_a_record_that_names_anything_but_an_output_is_refused(tmp_path: Path, name: Any) -> None:
    memory = read_earlier_outputs(tmp_path, [fact("succeeded", "plan", output_file=name)])
    with pytest.raises(CorruptState, match="is not an output of a step"):
        memory.output("plan")


def test_an_output_must_be_a_plain_file_reached_without_a_link(tmp_path: Path) -> None:
    for number, kind in enumerate(("plain", "link", "fifo", "folder")):
        attempt = tmp_path / f"results/{number}-1-0123456789abcdef"
        (attempt / "output.txt" if kind == "folder" else attempt).mkdir(parents=True)
        if kind == "plain":
            (attempt / "output.txt").write_text("said")
        elif kind == "link":
            (attempt / "output.txt").symlink_to("/proc/self/environ")
        elif kind == "fifo":
            os.mkfifo(attempt / "output.txt")
        name = f"results/{attempt.name}/output.txt"
        memory = read_earlier_outputs(tmp_path, [fact("succeeded", "plan", output_file=name)])
        if kind == "plain":
            assert memory.output("plan") == "said"
        else:
            with pytest.raises(CorruptState):
                memory.output("plan")
    (tmp_path / "results").rename(tmp_path / "aside")
    (tmp_path / "results").symlink_to("aside")
    memory = read_earlier_outputs(
        tmp_path, [fact("succeeded", "plan", output_file="results/0-1/output.txt")]
    )
    with pytest.raises(UnsafeFolder):
        memory.output("plan")


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize(
    "made", [b"", b"a long out", b"a long \0\0\0put", b"a long output and more"]
)
def test_an_output_changed_after_it_was_written_is_refused(
    tmp_path: Path, made: bytes, is_sealed: bool
) -> None:
    attempt = tmp_path / "results" / "3-4"
    results.write_output(attempt, b"a long output")
    memory = read_earlier_outputs(
        tmp_path, [fact("succeeded", "plan", output_file="results/3-4/output.txt", output_bytes=13)]
    )
    assert memory.output("plan") == "a long output"
    (attempt / "output.txt").write_bytes(made)
    if not is_sealed:
        # As earlier versions left it: only that it is empty can be told.
        for seal in attempt.glob("output.txt.*"):
            seal.unlink()
        if made:
            assert memory.output("plan") == made.decode()
            return
    with pytest.raises(StorageFailed, match="was changed after it was written"):
        memory.output("plan")


def no(number: int, reason: str = "it fails", event: str = "invalid") -> dict[str, Any]:
    verdict = {"pass": False, "round": number, "reason": reason}
    return fact(event, "judge", verdict=verdict)


def test_the_rounds_of_a_judge_are_shown_until_its_step_is_settled(tmp_path: Path) -> None:
    rounds = [
        no(1, "a"),
        fact("fixed", "fix", output="did a"),
        no(2, "b"),
        fact("fixed", "fix", output="x" * 5000),
        # The last round fails the step; whoever tries again has them all before.
        no(3, "c", "failed"),
        no(1, "", "invalid"),
        no(2, "e"),
    ]
    assert read_earlier_outputs(tmp_path, rounds).earlier_rounds() == (
        "Round 1 found: a\n\nThen this was tried: did a\n\n"
        f"Round 2 found: b\n\nThen this was tried: …{'x' * 4000}\n\n"
        "Round 3 found: c\n\nRound 1 found: no reason was given"
    )
    assert read_earlier_outputs(tmp_path, rounds[:1]).earlier_rounds() == ""
    for event in ("succeeded", "skipped", "stamped", "rewound", "reset"):
        assert (
            read_earlier_outputs(tmp_path, [*rounds, fact(event, "judge")]).earlier_rounds() == ""
        )


def test_the_oldest_of_many_rounds_are_left_out(tmp_path: Path) -> None:
    tried = fact("fixed", "fix", output="x" * 3_900)
    many = [one for number in range(1, 201) for one in (no(number), tried)]
    told = read_earlier_outputs(tmp_path, many).earlier_rounds()
    assert len(told) < 20_200
    assert told.startswith("(There were 194 more before these.)\n\nRound 195 found: it fails")
    assert "Round 199 found" in told


def test_a_round_with_a_missing_output_does_not_stop_the_fixer(tmp_path: Path) -> None:
    gone = "results/0-1-0123456789abcdef/output.txt"
    rounds = [no(1), fact("fixed", "fix", output_file=gone), no(2)]
    assert read_earlier_outputs(tmp_path, rounds).earlier_rounds().endswith("(its output is gone)")
