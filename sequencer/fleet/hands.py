"""Who lets a run go on: a *hand* is one process's permission for so many steps.

Its kind decides what it may claim and what an attempt's end means, its stint when it is used
up. Pure: time comes in, and what is written goes out through the store that it is given. Not
decided here: which worker makes an attempt, and whether that worker is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from msgspec import convert
from msgspec.structs import replace

from sequencer.engine.markings import NetChanges
from sequencer.engine.patience import Changes, changes_of
from sequencer.engine.stint import LineStint, Mode
from sequencer.errors import ClaimHeld, Interrupted, SequencerError, StaleClaim
from sequencer.fleet.wire import (
    FACTS,
    HEAD,
    RUN,
    Report,
    Ticket,
    ended_of,
    error_of,
    head_of,
    own_facts,
    owner_of,
    packed,
    packed_error,
)
from sequencer.model.head import Claim, Head, Status
from sequencer.model.kind import Ended, Readiness, Room, Standing
from sequencer.model.limits import InvocationLimits, RunLimits
from sequencer.model.line.order import present, step_at
from sequencer.model.transitions import Transition
from sequencer.model.workflow import Workflow, ensure_definition, has_definition
from sequencer.store.protocol import Change, Store, View


class MemoStore:
    """What a `Store` is to the engine, where the head itself is; its records go to *write*."""

    ttl_s, patience_s = 60.0, 0.0
    state_path = Path("state.json")

    def __init__(self, memo: Mapping[str, Any], publish: Callable[[dict[str, Any]], None]) -> None:
        """Start with what *memo* has; *publish* changes it."""
        self.head = head_of(memo)
        self.documents = {k: v for k, v in memo.items() if k not in (RUN, HEAD, FACTS)}
        self.outputs: dict[str, str] = {}
        """Of attempts, by their names, where a choice may ask for them."""
        self.told: tuple[int, Mapping[str, Any]] | None = None
        """Token and record of the attempt that is being recorded; its report is kept anyway."""
        self._publish = publish
        self._run = memo[RUN]
        self._changed: dict[str, str | None] = {}

    def view(self) -> View:
        """See `Store.view`."""
        return View(self.head)

    def update(self, change: Change) -> Head:
        """See `Store.update`."""
        made = change(self.head)
        if made is None:
            return self.head
        head = made.head.replace(revision=self.head.revision + 1, journal_offset=0)
        return self.write(head, own_facts(made.facts, self.told))

    def write(self, head: Head, facts: list[Any]) -> Head:
        """Accept *head* and the *facts* that have led to it: one record of the journal."""
        parts = packed(head)
        if parts[RUN] == self._run:
            del parts[RUN]
        else:
            self._run = parts[RUN]
        self._publish({**parts, FACTS: facts, **self._changed})
        self._changed, self.head = {}, head
        return head

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """See `Store.history`: nobody asks for it here."""
        del after
        return iter(())

    def document(self, name: str) -> bytes | None:
        """See `Store.document`."""
        found = self.documents.get(name)
        return None if found is None else found.encode()

    def keep_document(self, name: str, data: bytes) -> None:
        """See `Store.keep_document`."""
        self.change_documents({name: data.decode()})

    def forget_documents(self, prefix: str, keep: Collection[str]) -> None:
        """See `Store.forget_documents`."""
        gone = [name for name in self.documents if name.startswith(prefix) and name not in keep]
        self.change_documents(dict.fromkeys(gone))

    def change_documents(self, changed: Mapping[str, str | None]) -> None:
        """Put documents in the place of those of their names; None removes one."""
        self._changed.update(changed)
        for name, text in changed.items():
            self.documents.pop(name, None)
            if text is not None:
                self.documents[name] = text


class HeldNet(NetChanges):
    """A graph's run whose outputs are where its head is."""

    def read_output(self, name: str) -> str:
        """See `NetChanges.read_output`; one that was too large to travel reads as empty."""
        return cast("MemoStore", self.store).outputs.get(name, "")

    def keep_output(self, step_index: int, token: int, output: str) -> str | None:
        """See `NetChanges.keep_output`."""
        if not output:
            return None
        name = f"{step_index}-{token}"
        cast("MemoStore", self.store).outputs[name] = output
        return name


class Hand:
    """One process's permission to go on in a run of one place, and why it ends."""

    def __init__(self, data: Mapping[str, Any], store: MemoStore) -> None:
        """Take what a process has sent, or what `kept` has returned."""
        self._data, self._store = dict(data), store
        self.by: str = data["by"]
        """The process; empty for one that nobody need wait for."""
        self.ttl_s: float = data["ttl_s"]
        self.workflow = Workflow.model_validate(data["workflow"])
        self._run_limits = RunLimits.model_validate(data.get("run_limits", {}))
        self._changes = self._made(cast("Store", store))
        self._changes.now = lambda: self._at
        limits = InvocationLimits.model_validate(data.get("limits", {}))
        self._stint = LineStint(
            self.workflow,
            Mode(data["mode"]),
            limits,
            self._run_limits,
            store.head,
            positions=data.get("positions", ()),
        )
        if "kept" in data:
            self._stint.restore(data["kept"])
        self.end: dict[str, Any] | None = None
        """What its process is told; None: it goes on."""
        self.until: datetime | None = None
        """When it has to be asked again, whatever happens."""
        self._waiting_since: datetime | None = None
        self._mine: set[int] = set()
        self._live: Collection[int] = ()
        self._at = datetime.min.replace(tzinfo=UTC)

    def _made(self, store: Store) -> Changes:
        return changes_of(store, self.workflow)

    def kept(self) -> dict[str, Any]:
        """Return it as plain data, to continue elsewhere."""
        return {**self._data, "kept": self._stint.kept()}

    def finish(self, reason: str, error: BaseException | None = None) -> None:
        """End it, for a *reason* or with an *error*."""
        if self.end is None:
            self.end = {"reason": reason, **self._stint.kept()}
            if error is not None:
                self.end["error"] = packed_error(error)

    def vanish(self) -> None:
        """End it because its process is gone."""
        self.finish("", Interrupted(f"{self.by} is gone", hint="start again to go on"))

    def ticket(self, token: int) -> Ticket:
        """Return what the attempt with *token* is told."""
        budget = self._stint.budget(self._store.head)
        return Ticket(token, budget.cost_usd, budget.timeout_s)

    def timeout_s(self, token: int) -> float | None:
        """Return how long the attempt with *token* may take, if its step says it."""
        claim = self._store.head.claim_with(token)
        step = None if claim is None else self.workflow.steps_by_name.get(claim.step)
        return None if step is None else step.timeout_s

    # --- what happens --------------------------------------------------------------

    def advance(self, live: Collection[int], at: datetime, *, may_claim: bool) -> list[int]:
        """Do what can be done now, and return the tokens of the claims that this grants.

        The attempts with the tokens *live* are being made; others have vanished. It is not to
        claim anything unless it *may_claim*.
        """
        self._live, self._at, self.until = live, at, None
        try:
            granted = self._advanced(may_claim=may_claim)
        except SequencerError as error:
            self.finish("", error)
            return []
        self._mine.update(granted)
        return granted

    def record(
        self,
        token: int,
        report: Report,
        live: Collection[int],
        at: datetime,
        *,
        jitter: float,
        may_claim: bool,
    ) -> list[int]:
        """Record how its attempt with *token* has ended; else see `advance`."""
        self._live, self._at, head = live, at, self._store.head
        self._mine.discard(token)
        if (claim := head.claim_with(token)) is None:
            return []
        ended = replace(self._ended(report, claim), jitter=jitter)
        self._count(ended)
        self._store.told = token, report.record
        try:
            granted = self._recorded(ended, report, may_claim=may_claim)
        except StaleClaim:
            return []
        except SequencerError as error:
            self.finish("", error)
            return []
        finally:
            self._store.told = None
        self._mine.update(granted)
        return granted

    def give_back(self, token: int, facts: Mapping[str, Any], at: datetime) -> None:
        """Give the claim with *token* back, whose attempt could not start; that ends it."""
        self._mine.discard(token)
        self._at, error = at, error_of(facts)
        if self._store.head.claim_with(token) is not None:
            self._store.update(lambda head: self._expired(head, token, str(facts["message"])))
        self.finish("", error)

    def _expired(self, head: Head | None, token: int, why: str) -> Transition | None:
        return None if head is None else self._changes.kind.expire(head, token, why, at=self._at)

    # --- of a line -----------------------------------------------------------------

    def _advanced(self, *, may_claim: bool) -> list[int]:
        head, stint = self._store.head, self._stint
        if self._mine.intersection(self._live):
            return []
        ensure_definition(head, self.workflow)
        if head.status is not Status.COMPLETE and (reached := stint.reached(head)) is not None:
            self.finish(reached)
            return []
        here = self._standing(head)
        if here.kind is Readiness.EXPIRED:
            self._store.update(self._lapsed)
            return self._advanced(may_claim=may_claim)
        if (reason := stint.reason_to_end(here, head)) is not None:
            self.finish(reason)
        elif here.kind is Readiness.NOT_YET:
            self.until = datetime.fromisoformat(here.until or "")
        elif here.kind is Readiness.READY and stint.is_mine(head.step_index):
            self._waiting_since = None
            return self._changes.update(None, self._room)[1] if may_claim else []
        else:
            self._wait(here)
        return []

    def _standing(self, head: Head) -> Standing:
        """Return what may happen; claims whose attempts have vanished are in nobody's way."""
        live = tuple(one for one in head.claims if one.token in self._live)
        seen = head if len(live) == len(head.claims) else head.replace(claims=live)
        return self._changes.kind.ready(seen, self._run_limits, at=self._at)

    def _lapsed(self, head: Head | None) -> Transition | None:
        return None if head is None else self._changes.kind.lapse(head, at=self._at)

    def _wait(self, here: Standing) -> None:
        """Wait for others.

        Raises:
            ClaimHeld: it has waited as long as it may.
        """
        own, mode = self._stint.limits.max_wait_s, self._stint.mode
        most = 0.0 if mode is Mode.TICK else own
        if most is None and mode is Mode.SYNC:
            return
        self._waiting_since = self._waiting_since or self._at
        until = self._waiting_since + timedelta(seconds=most or 0.0)
        if until <= self._at:
            raise ClaimHeld(here.message, hint="wait for it with --max-wait")
        self.until = until

    def _room(self, head: Head) -> Room | None:
        gone = frozenset(one.token for one in head.claims if one.token not in self._live)
        return Room(owner_of(head.run_id), self.ttl_s, None, 1, gone, self._run_limits)

    def _ended(self, report: Report, claim: Claim) -> Ended:
        here = present(self.workflow, self._store.head)
        return ended_of(report, claim, here, step_at(self.workflow, here), self.workflow)

    def _count(self, ended: Ended) -> None:
        self._stint.count(ended)

    def _recorded(self, ended: Ended, report: Report, *, may_claim: bool) -> list[int]:
        following = ended.ending.next_place
        is_on = may_claim and self.end is None and following is not None
        is_on = is_on and report.raised is None and self._stint.is_mine(following.step_index)

        def room(head: Head) -> Room | None:
            may_go_on = is_on and self._stint.reached(head) is None
            return self._room(head) if may_go_on and has_definition(head, self.workflow) else None

        kind = self._changes.kind
        run_id = self._store.head.run_id
        head, granted = self._changes.update(
            lambda change: kind.take(change, ended), room, run_id=run_id
        )
        self._end_with(ended, report)
        self._stint.ensure_goes_on(ended, head)
        return granted

    def _end_with(self, ended: Ended, report: Report) -> None:
        """End with an attempt whose process is to end, or has raised something."""
        if report.raised is not None:
            self.finish("", error_of(report.raised))
        elif report.left is not None and report.left == self.by:
            text = f"interrupted in step {ended.claim.step!r}; the claim was released"
            self.finish("", Interrupted(text, hint="start again to go on"))


def hand_of(data: Mapping[str, Any], store: MemoStore) -> Hand:
    """Return the hand that a process has sent as *data*."""
    return Hand(data, store)


def report_from(data: Any) -> Report:
    """Return the report that an attempt has returned as plain *data*."""
    return convert(data, Report)
