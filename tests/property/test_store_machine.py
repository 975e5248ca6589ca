"""The file store against a simple model, in every order that hypothesis can think of."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sequencer import Claim, Event, Fact, FileStore, Head, Status, Transition
from sequencer.errors import ClaimHeld, EditRefused, StaleClaim
from tests.contract import store_cases as cases
from tests.property.amounts import FACTOR, SLOW

WORKERS = 3
ROTATE_BYTES = 6_000


def without_claim(head: Head) -> Transition:
    """Take the claim of *head* away from its holder, as a person does."""
    (claim,) = head.claims
    fact = Fact(
        Event.TAKEN_OVER, claim.step, claim.step_index, claim.token, claim.attempt, {"note": "mine"}
    )
    return Transition(head.replace(claims=(), status=Status.IDLE, last_update=cases.now()), (fact,))


class Run(RuleBasedStateMachine):
    """Three workers, a person with an editor, and bad luck, on one folder."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="sequencer-machine-"))
        self.state = self.folder / "state.json"
        self.stores = [self.open() for _ in range(WORKERS)]
        cases.begin(self.stores[0])
        # The model: what was acknowledged, and nothing else.
        self.step_index = 0
        self.revision = 1
        self.token = 0
        self.held: Claim | None = None
        self.tokens: list[int] = []
        self.accepted: list[tuple[int, int]] = []
        self.lost: list[Claim] = []
        self.note: object = None

    def open(self) -> FileStore:
        return FileStore(self.state, rotate_bytes=ROTATE_BYTES, keep=10_000)

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        shutil.rmtree(self.folder)

    def granted(self, claim: Claim) -> None:
        assert claim.token == self.token + 1
        assert claim.step_index == self.step_index
        self.token, self.held = claim.token, claim
        self.tokens.append(claim.token)

    # --- turns ---------------------------------------------------------------------

    @rule(worker=st.integers(0, WORKERS - 1))
    def claim(self, worker: int) -> None:
        if self.held is None:
            self.granted(cases.claim(self.stores[worker]))
            self.revision += 1
            return
        with pytest.raises(ClaimHeld):
            cases.claim(self.stores[worker])

    @precondition(lambda self: self.held is not None)
    @rule(worker=st.integers(0, WORKERS - 1))
    def commit(self, worker: int) -> None:
        assert self.held is not None
        cases.commit(self.stores[worker], self.held.token)
        self._accepted()
        self.revision += 1

    def _accepted(self) -> None:
        assert self.held is not None
        self.accepted.append((self.held.step_index, self.held.token))
        self.step_index = self.held.step_index + 1
        self._end()

    def _end(self) -> None:
        assert self.held is not None
        self.lost.append(self.held)
        self.held = None

    @precondition(lambda self: self.held is not None)
    @rule(worker=st.integers(0, WORKERS - 1))
    def commit_and_claim(self, worker: int) -> None:
        assert self.held is not None
        following = cases.commit_and_claim(self.stores[worker], self.held.token)
        self._accepted()
        self.granted(following)
        self.revision += 1

    @precondition(lambda self: self.held is not None)
    @rule(worker=st.integers(0, WORKERS - 1), fails=st.booleans())
    def give_up(self, worker: int, fails: bool) -> None:
        assert self.held is not None
        (cases.fail if fails else cases.release)(self.stores[worker], self.held.token)
        self._end()
        self.revision += 1

    @precondition(lambda self: self.held is not None)
    @rule(worker=st.integers(0, WORKERS - 1))
    def take_over(self, worker: int) -> None:
        self.stores[worker].update(cases.on_run(without_claim))
        self._end()
        self.granted(cases.claim(self.stores[worker]))
        self.revision += 2

    @precondition(lambda self: self.lost)
    @rule(data=st.data(), worker=st.integers(0, WORKERS - 1))
    def come_back_too_late(self, data: st.DataObject, worker: int) -> None:
        token = data.draw(st.sampled_from(self.lost)).token
        for verb in (cases.commit, cases.fail, cases.release, cases.commit_and_claim):
            with pytest.raises(StaleClaim):
                verb(self.stores[worker], token)

    # --- a person ------------------------------------------------------------------

    @rule(worker=st.integers(0, WORKERS - 1), note=st.text(max_size=20))
    def edit_a_note(self, worker: int, note: str) -> None:
        is_new = self._mended().get("note") != note
        cases.edit(self.state, note=note)
        self.stores[worker].update(lambda _: None)
        self.note = note
        self.revision += int(is_new)

    @rule(
        worker=st.integers(0, WORKERS - 1),
        field=st.sampled_from(["token", "claims", "journal_offset", "step_index", "status"]),
    )
    def edit_what_has_a_command(self, worker: int, field: str) -> None:
        own = self._mended()
        values: dict[str, Any] = {
            "token": -1,
            "claims": [{"owner": 1}],
            "journal_offset": 10**9,
            "step_index": self.step_index + 1,
            "status": "complete",
        }
        cases.edit(self.state, **{field: values[field]})
        edited = self.state.read_bytes()
        self.stores[worker].update(lambda _: None)
        assert json.loads(self.state.read_text()) == own
        kept = {path.read_bytes() for path in self.folder.glob("state.json.edited*")}
        assert edited in kept

    @rule()
    def edit_the_run_id(self) -> None:
        self._mended()
        own = self.state.read_bytes()
        cases.edit(self.state, run_id="x")
        for store in self.stores:
            with pytest.raises(EditRefused):
                store.update(lambda _: None)
        self.state.write_bytes(own)

    def _mended(self) -> dict[str, Any]:
        """Return the head after a worker has restored it, if it was lost."""
        self.open().update(lambda _: None)
        content: dict[str, Any] = json.loads(self.state.read_text())
        return content

    # --- bad luck ------------------------------------------------------------------

    @rule(share=st.none() | st.floats(0, 0.99))
    def lose_the_head(self, share: float | None) -> None:
        whole = json.dumps(self._mended(), indent=2).encode()
        self.state.unlink()
        if share is not None:
            self.state.write_bytes(whole[: int((len(whole) - 1) * share)])

    @rule(share=st.floats(0, 0.99))
    def tear_a_line(self, share: float) -> None:
        journal = self.folder / "journal.jsonl"
        last = journal.read_bytes().splitlines(keepends=True)[-1]
        with journal.open("ab") as file:
            file.write(last[: int(len(last) * share)])

    @rule()
    def lose_the_lock_file(self) -> None:
        (self.folder / "state.json.lock").unlink(missing_ok=True)

    @rule(worker=st.integers(0, WORKERS - 1))
    def reopen(self, worker: int) -> None:
        self.stores[worker].close()
        self.stores[worker] = self.open()

    @rule()
    def leave_temporary_files(self) -> None:
        for name in (".state.json.1.tmp", "journal.jsonl.1.tmp"):
            (self.folder / name).write_text("half")

    # --- what always holds ---------------------------------------------------------

    @invariant()
    def everybody_sees_what_was_acknowledged(self) -> None:
        for store in [*self.stores, self.open()]:
            head = store.view().head
            assert head is not None
            assert (head.step_index, head.token) == (self.step_index, self.token)
            assert head.revision == self.revision
            assert [c.token for c in head.claims] == ([self.held.token] if self.held else [])
            assert head.model_dump().get("note") == self.note

    @invariant()
    def the_journal_tells_the_same(self) -> None:
        facts = list(self.open().history())
        revisions = sorted({fact["revision"] for fact in facts})
        assert revisions == list(range(1, self.revision + 1))
        accepted = [(f["step_index"], f["token"]) for f in facts if f["event"] == "succeeded"]
        assert accepted == self.accepted
        assert [f["token"] for f in facts if f["event"] == "claimed"] == self.tokens
        assert len(set(self.tokens)) == len(self.tokens)

    @invariant()
    def the_head_stays_small(self) -> None:
        if self.state.exists():
            assert self.state.stat().st_size < cases.HEAD_LIMIT


TestRun = Run.TestCase
TestRun.settings = settings(
    max_examples=15 * max(int(os.environ.get(FACTOR, "1")) ** 2 // 64, 1),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=SLOW,
)
