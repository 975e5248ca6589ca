"""The turn protocol holds in every reachable world, and broken rules are caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.long.report import Size
from tests.model import campaign as campaigning
from tests.model.campaign import campaign
from tests.model.exploring import TOO_MANY, Parts
from tests.model.git_protocol import Clone, Commit, GitModel, Pushing, Remote
from tests.model.mutants import LONG_BOUNDS, MUTANTS, PRODUCT, SMALL, explore, rules_for
from tests.model.turn_protocol import Model
from tests.model.world import TORN, Bounds, Head, Protocol, Record, Worker, World

pytestmark = pytest.mark.timeout(300)
"""Campaigns use up to 20 s of CPU each, which takes minutes on a busy machine."""

ASKED_FOR = {
    *("no fence", "owner name only", "torn write", "no lock", "last record wins"),
    *("append offset unchecked, lock file deleted", "token reset on fail", "no take-over"),
    *("soft lock", "no fsync", "head ahead of journal trusted", "roll-forward skipped"),
    *("force push", "naive retry after a lost ack"),
}


def test_the_protocol_holds(tmp_path: Path) -> None:
    report = campaign(tmp_path, Size.SHORT)
    assert report.violations == ()
    assert report.counts["states"] > 35_000
    assert report.counts["mutants"] == len(MUTANTS)


def test_every_required_mutant_exists() -> None:
    assert ASKED_FOR - MUTANTS.keys() == set()


def test_the_path_to_a_violation_is_shown() -> None:
    verdict = explore(*MUTANTS["append offset unchecked, lock file deleted"])
    assert verdict.violation is not None
    first, *_, last = verdict.path
    assert (first.journal, first.deletions) == ((), 0)
    assert last.deletions == 1


def test_the_campaign_reports_exceeded_bounds_and_uncaught_mutants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigning, "PRODUCT_BOUNDS", {"git": Bounds(states=100)})
    monkeypatch.setattr(campaigning, "MUTANTS", {"none at all": (PRODUCT, SMALL)})
    report = campaign(tmp_path, Size.SHORT)
    assert report.violations == (f"git: {TOO_MANY}", "the mutant 'none at all' is not caught")


def test_the_long_form_has_three_workers_and_every_kind_of_fault() -> None:
    assert {bounds.workers for bounds in LONG_BOUNDS.values()} == {3}
    assert "git" in LONG_BOUNDS
    assert any(bounds.power_loss for bounds in LONG_BOUNDS.values())
    assert any(bounds.deletions for bounds in LONG_BOUNDS.values())


def test_without_the_lock_the_journal_alone_keeps_two_writers_apart() -> None:
    verdict = explore(replace(PRODUCT, has_lock=False), replace(SMALL, crashes=0, lines=9))
    assert verdict.violation is None


class Unreduced(Model):
    """Every world is one of its own, whatever its workers are called."""

    def parts(self, world: World) -> Parts:
        return tuple(world)

    def put_together(self, parts: Parts) -> World:
        return World(*parts)  # type: ignore[arg-type]


REDUCED = {
    "the product": (PRODUCT, SMALL),
    "the product, deletions": (PRODUCT, replace(SMALL, deletions=1)),
    "the product, power": (PRODUCT, replace(SMALL, power_loss=True)),
    **{name: MUTANTS[name] for name in MUTANTS if isinstance(MUTANTS[name][0], Protocol)},
}


@pytest.mark.slow(sample=4)
@pytest.mark.parametrize("name", REDUCED)
def test_merging_equivalent_worlds_hides_nothing(name: str) -> None:
    protocol, bounds = REDUCED[name]
    assert isinstance(protocol, Protocol)
    bounds = min(bounds, replace(SMALL, power_loss=bounds.power_loss), key=lambda b: b.tokens)
    plain, reduced = Unreduced(protocol, bounds).explore(), Model(protocol, bounds).explore()
    assert (plain.violation is None) == (reduced.violation is None)
    assert len(plain.path) == len(reduced.path)
    assert reduced.states <= plain.states


# --- single moves ------------------------------------------------------------------------

RUNNING = Head(1, 0, is_running=True, token=1)


def test_accepting_and_claiming_can_be_one_record() -> None:
    model = Model(PRODUCT, Bounds())
    holder = Worker(at="commit", claim=(0, 1))
    world = World((Record(RUNNING),), 1, RUNNING, 0, (holder, Worker()), (1,))
    records = {w.workers[0].record for w in model.moves(world) if w.workers[0].record}
    assert Record(Head(2, 1, is_running=True, token=2, owner=0), (0, 1), 0) in records
    assert Record(Head(2, 1, is_running=False, token=1), (0, 1), 0) in records


def test_a_line_after_an_unseen_torn_one_is_lost() -> None:
    model = Model(PRODUCT, Bounds())
    writer = Worker(at="append", expected=0, record=Record(RUNNING, None, 0))
    world = World((TORN,), 0, lock=0, workers=(writer, Worker()))
    after = [w for w in model.moves(world) if w.workers[0].at == "sync"]
    assert [model.winners(w.journal) for w in after] == [[]]


def test_state_json_follows_a_line_only_when_the_line_is_durable() -> None:
    model = Model(PRODUCT, Bounds(power_loss=True))
    world = World((Record(RUNNING),), 0, lock=0, workers=(Worker(at="claim"), Worker()))
    rolling = [w for w in model.moves(world) if w.workers[0].at == "roll"]
    assert len(rolling) == 1
    synced = [w for w in model.moves(rolling[0]) if w.workers[0].at == "restore"]
    assert [(w.durable, w.head) for w in synced] == [(1, World().head)]
    assert any(w.head == RUNNING for w in model.moves(synced[0]))


def test_a_power_loss_may_leave_any_part_of_unsynced_data() -> None:
    model = Model(PRODUCT, Bounds(power_loss=True))
    second = Head(2, 1, is_running=False, token=1)
    world = World((Record(RUNNING), Record(second)), 1, RUNNING, 0, (Worker(), Worker()))
    left = {w.journal for w in model.moves(world) if w.crashes}
    first = (Record(RUNNING),)
    assert left == {first, (*first, TORN), (*first, Record(second))}


def test_a_push_counts_if_its_commit_is_an_ancestor_of_the_tip() -> None:
    model = explore_git()
    own, other = Commit(RUNNING, None, 0), Commit(Head(2, 0, is_running=False, token=1))
    waiting = Clone(at="lost answer", commit=own)
    world = Remote((own, other), (waiting, Clone()))
    assert [w.clones[0].at for w in model.moves(world)][-2:] == ["accepted", "lost answer"]
    gone = world._replace(tip=())
    assert "accepted" not in {w.clones[0].at for w in model.moves(gone)}


def explore_git() -> GitModel:
    rules = rules_for("git")
    assert isinstance(rules, Pushing)
    return GitModel(rules, Bounds())
