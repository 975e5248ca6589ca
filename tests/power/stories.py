"""What is going on when the power fails: a run's transitions, and what has to be found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sequencer import FileStore
from sequencer.store import results
from tests.concurrency import crash_points
from tests.contract import store_cases as cases

RUN = "project/sync"
"""The run's folder below the one that is recorded; the project's folder was synced long ago."""
LEGACY = '{"step_index": 0, "status": "idle", "mine": 1}'
OUTPUT = b"a long answer\n" * 400


@dataclass(frozen=True)
class Story:
    """Something that a process does with a run."""

    actions: tuple[Callable[[FileStore], object], ...]
    """Transitions, each acknowledged when it returns."""
    given: Callable[[Path], None] = crash_points.nothing
    """Makes what was there, synced, before."""
    holds: Callable[[Path, int], str | None] = lambda _folder, _told: None
    """What is wrong with a recovered folder, beside what every run has to keep."""


def commit(store: FileStore) -> object:
    return cases.commit(store, crash_points.held_token(store))


def commit_and_claim(store: FileStore) -> object:
    return cases.commit_and_claim(store, crash_points.held_token(store))


def fail(store: FileStore) -> object:
    return cases.fail(store, crash_points.held_token(store))


def release(store: FileStore) -> object:
    return cases.release(store, crash_points.held_token(store))


def beat(store: FileStore) -> object:
    """Beat; a heartbeat promises nothing, so it acknowledges nothing that is new."""
    crash_points.beat(store)
    return None


def commit_with_output(store: FileStore) -> object:
    """Accept a step whose output is too long for the journal."""
    token = crash_points.held_token(store)
    head = store.view().head
    assert head is not None
    results.write_output(store.result_folder(head.step_index, token), OUTPUT)
    return cases.commit(store, token, note="output.txt")


def has_output(folder: Path, told: int) -> str | None:
    """Say if the output of a step that was accepted is not there."""
    for fact in crash_points.new_store(folder).history():
        if fact["revision"] <= told and (fact["outcome"] or {}).get("output") == "output.txt":
            attempt = f"{fact['step_index']}-{fact['token']}"
            paths = list(folder.glob(f"results/{attempt}-*/output.txt"))
            if [path.read_bytes() for path in paths] != [OUTPUT]:
                return f"the output of an accepted step is lost: {attempt}"
    return None


def is_migrated(folder: Path, _told: int) -> str | None:
    """Say if the other program's state is neither carried over nor kept."""
    first = next(crash_points.new_store(folder).history())
    if "migrated_from" not in (first.get("outcome") or {}):
        return f"the state was not migrated, the run began anew: {first}"
    copies = [path.read_text() for path in folder.glob("state.json.before-migration*")]
    return None if LEGACY in copies else f"the original is lost: {copies}"


def of_another_program(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(LEGACY)


def of_the_sweep(name: str) -> Story:
    """Return the scenario *name* of the sweep of crash points."""
    given, action = crash_points.SCENARIOS[name]
    return Story((action,), given)


ROTATING = (cases.begin, cases.claim, *(release, cases.claim) * 2, commit, cases.claim, release)
STORIES: Mapping[str, Story] = {
    **{name: of_the_sweep(name) for name in crash_points.SCENARIOS},
    "a run's first steps": Story(
        (cases.begin, cases.claim, commit_and_claim, fail, cases.claim, commit)
    ),
    "a rotation from the start": Story(ROTATING),
    "a long output": Story(
        (cases.begin, cases.claim, commit_with_output, cases.claim), holds=has_output
    ),
    "migration": Story((cases.claim,), of_another_program, is_migrated),
}
