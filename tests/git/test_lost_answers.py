"""A push whose answer is lost: accepted if and only if the branch holds it, and never twice."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sequencer import Change
from sequencer.errors import ClaimHeld, RemoteUnreachable, StaleClaim
from tests.clones import Shared, SharedStore
from tests.concurrency import children
from tests.contract import store_cases as cases
from tests.contract.executor_cases import wait_until
from tests.git.tables import table
from tests.git.transports import TOO_OFTEN, Deed, Server, serve_by
from tests.git.turns import accepted_in, run_files, unsound

OTHERS: dict[str, dict[str, Any]] = {
    "the same history": {},
    "a history begun anew": {"max_commits": 2},
    "a journal put aside": {"rotate_bytes": 1, "keep": 50},
    "both": {"max_commits": 2, "rotate_bytes": 1, "keep": 50},
}
"""What another clone may have done before anybody looked."""


@dataclass
class Lab:
    """Two clones; the pushes of the first go through a server that may be told to fail."""

    shared: Shared
    ours: SharedStore
    server: Server
    token: int

    def meets(self, *deeds: Deed) -> None:
        """Let the next pushes of the first clone meet these *deeds*."""
        plan = [Deed.SERVE] * self.server.pushes() + list(deeds)
        self.server = Server(self.server.folder, plan)
        self.server.install(self.shared.clone("ours"))

    def ending(self) -> Change:
        """Return the change that accepts the step that the first clone holds."""
        return cases.on_run(partial(cases.succeeding, token=self.token))

    def gives_up(self) -> Change:
        """Return the same change once its push is held and no other has arrived."""
        self.meets(Deed.HELD, *[Deed.CUT_BEFORE] * TOO_OFTEN)
        change = self.ending()
        with pytest.raises(RemoteUnreachable, match="can't tell whether"):
            self.ours.update(change)
        self.meets()
        return change

    def check(self, accepted: list[tuple[int, int]]) -> None:
        """See that both clones have just *accepted*, in the same files."""
        theirs = self.shared.store("theirs")
        found = {}
        for name, store in (("ours", self.ours), ("theirs", theirs)):
            store.pull()
            assert accepted_in(store) == accepted
            folder = self.shared.clone(name) / "sync"
            cases.check_files(folder)
            found[name] = run_files(folder)
        theirs.close()
        assert found["ours"] == found["theirs"]


@pytest.fixture
def lab(tmp_path: Path, one_claim: Shared) -> Iterator[Lab]:
    """A run whose first step the first clone has claimed."""
    shared, server = Shared(tmp_path / "shared", one_claim), Server(tmp_path / "server")
    server.install(shared.clone("ours"))
    ours = shared.store("ours")
    ours.pull()
    yield Lab(shared, ours, server, token=1)
    shared.close()


def go_on(lab: Lab, **options: Any) -> int:
    """Take the next turn in the other clone, and return its token."""
    theirs = lab.shared.store("theirs", **options)
    token = cases.claim(theirs).token
    cases.commit(theirs, token)
    theirs.close()
    return token


def test_a_push_with_a_lost_answer_is_not_repeated(lab: Lab) -> None:
    lab.meets(Deed.CUT_AFTER)
    before = lab.server.pushes()
    head = lab.ours.update(lab.ending())
    assert (head.step_index, head.revision) == (1, 3)
    assert lab.server.pushes() == before + 1, "pushed again what was accepted"
    lab.check([(0, 1)])


def test_a_push_that_did_not_arrive_is_repeated(lab: Lab) -> None:
    lab.meets(Deed.CUT_BEFORE, Deed.CUT_BEFORE)
    before = lab.server.pushes()
    assert lab.ours.update(lab.ending()).step_index == 1
    assert lab.server.pushes() == before + 3
    lab.check([(0, 1)])


WAITING = """#!/bin/sh
touch '{folder}/looks'
until test -e '{folder}/others-have-gone-on'; do sleep 0.01; done
exec git upload-pack "$@"
"""


@pytest.mark.parametrize("other", table(OTHERS, "the same history"))
def test_others_may_have_continued_before_the_check(other: str, lab: Lab) -> None:
    lab.meets(Deed.CUT_AFTER)
    folder, before = lab.server.folder, lab.server.pushes()
    script = WAITING.format(folder=folder)
    serve_by(script, "upload-pack", folder / "waiting", lab.shared.clone("ours"))
    with ThreadPoolExecutor(1) as thread:
        accepting = thread.submit(lab.ours.update, lab.ending())
        assert wait_until((folder / "looks").exists, 60)
        token = go_on(lab, **OTHERS[other])
        (folder / "others-have-gone-on").touch()
        head = accepting.result()
    assert (head.step_index, lab.server.pushes()) == (1, before + 1)
    lab.check([(0, 1), (1, token)])
    assert unsound(lab.shared, ["ours", "theirs"]) == []


@pytest.mark.slow(sample=1)
@pytest.mark.parametrize(
    ("deed", "is_overtaken"),
    [(Deed.GONE_AFTER, False), (Deed.GONE_AFTER, True), (Deed.GONE_BEFORE, False)],
)
def test_repeating_the_change_resolves_an_unknown_outcome(
    deed: Deed, lab: Lab, *, is_overtaken: bool
) -> None:
    lab.meets(deed)
    change, before = lab.ending(), lab.server.pushes()
    with pytest.raises(RemoteUnreachable):
        lab.ours.update(change)
    with pytest.raises(RemoteUnreachable):
        lab.ours.update(change)
    Server.back(lab.shared.bare)
    accepted, is_there = [(0, 1)], deed is Deed.GONE_AFTER
    if is_overtaken:
        accepted.append((1, go_on(lab)))
    head = lab.ours.update(change)
    assert (head.step_index, head.revision) == (1, 3)
    assert lab.server.pushes() == before + (1 if is_there else 2)
    lab.check(accepted)


def test_another_change_after_a_lost_answer_finds_the_step_accepted(lab: Lab) -> None:
    lab.meets(Deed.GONE_AFTER)
    with pytest.raises(RemoteUnreachable):
        lab.ours.update(lab.ending())
    Server.back(lab.shared.bare)
    with pytest.raises(StaleClaim):
        lab.ours.update(lab.ending())
    lab.check([(0, 1)])


def test_another_change_is_not_mistaken_for_the_pending_one(lab: Lab) -> None:
    lab.meets(Deed.GONE_AFTER)
    failing = cases.on_run(partial(cases.failing, token=lab.token))
    with pytest.raises(RemoteUnreachable):
        lab.ours.update(lab.ending())
    with pytest.raises(RemoteUnreachable):
        lab.ours.update(failing)
    Server.back(lab.shared.bare)
    with pytest.raises(StaleClaim):
        lab.ours.update(failing)
    lab.check([(0, 1)])


def test_a_push_that_arrives_later_is_the_same_commit(lab: Lab) -> None:
    lab.meets(Deed.HELD)
    assert lab.ours.update(lab.ending()).step_index == 1
    tip = lab.shared.tip()
    lab.server.release()
    assert lab.shared.tip() == tip
    lab.check([(0, 1)])


def test_a_push_that_arrives_after_giving_up_is_found(lab: Lab) -> None:
    change = lab.gives_up()
    lab.check([])
    lab.server.release()
    assert lab.ours.update(change).step_index == 1
    lab.check([(0, 1)])


def test_a_push_that_arrives_during_its_retry_is_not_mistaken_for_anothers(lab: Lab) -> None:
    change, mark = lab.gives_up(), lab.server.folder / "retried"
    lab.server.release_in("receive-pack", lab.shared.clone("ours"), mark)
    mark.touch()
    assert lab.ours.update(change).step_index == 1
    assert (lab.server.folder / "go").exists(), "it was not tried again"
    lab.check([(0, 1)])


def test_a_push_that_arrives_after_a_takeover_is_refused(lab: Lab) -> None:
    change = lab.gives_up()
    theirs = lab.shared.store("theirs")
    # Its holder gives the step back by hand, and the other clone takes it.
    cases.release(theirs, lab.token)
    token = cases.claim(theirs).token
    lab.server.release()
    with pytest.raises(StaleClaim):
        lab.ours.update(change)
    cases.commit(theirs, token)
    lab.check([(0, token)])


def test_a_claim_whose_answer_was_lost_is_held_once(lab: Lab) -> None:
    cases.commit(lab.ours, lab.token)
    lab.meets(Deed.CUT_AFTER)
    granted = cases.claim(lab.ours)
    with pytest.raises(ClaimHeld):
        cases.claim(lab.shared.store("theirs"))
    cases.commit(lab.ours, granted.token)
    lab.check([(0, 1), (1, 2)])


Calls = Sequence[object]
MOMENTS: dict[str, tuple[type | ModuleType, str, Callable[[Calls], bool]]] = {
    "before the push": (subprocess.Popen, "__init__", lambda given: "push" in words_of(given[1])),
    "before the journal is written": (os, "write", lambda given: is_journal(given[0])),
    "before the head is written": (os, "replace", lambda given: given[1] == "state.json"),
    "before the branch is noted": (os, "replace", lambda given: given[1] == "remote.json"),
}
"""Which call of the process is its last: by what it is given."""


def words_of(argv: object) -> list[str]:
    return argv if isinstance(argv, list) else []


def is_journal(fd: object) -> bool:
    """Return whether the file descriptor *fd* is of a journal."""
    return os.readlink(f"/proc/self/fd/{fd}").endswith("/journal.jsonl")  # noqa: PTH115


def commit_and_die(lab: Lab, moment: str) -> None:
    """Accept the step as a process does that is killed at this *moment*."""
    holder, name, is_last = MOMENTS[moment]
    real = getattr(holder, name)

    def call(*given: Any, **options: Any) -> Any:
        if is_last(given):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **options)

    setattr(holder, name, call)
    cases.commit(lab.ours, lab.token)


@pytest.mark.parametrize("goes_on", table(("ours", "theirs"), "theirs"))
@pytest.mark.parametrize("moment", table(MOMENTS, "before the journal is written"))
def test_a_process_killed_around_its_push_is_recovered(moment: str, goes_on: str, lab: Lab) -> None:
    lab.ours.close()
    role = partial(commit_and_die, lab, moment)
    _, status = os.waitpid(children.start(role, lab.shared.folder / "errors"), 0)
    assert os.WIFSIGNALED(status)
    assert children.wrong(lab.shared.folder / "errors") == ()
    was_pushed = moment != "before the push"
    lab.ours.close()
    lab.ours = lab.shared.store("ours")
    store = lab.ours if goes_on == "ours" else lab.shared.store("theirs")
    # The holder is this very process, which lives: nobody takes its step.
    if was_pushed:
        granted = cases.claim(store)
        assert granted.step_index == 1
        cases.commit(store, granted.token)
    else:
        cases.commit(store, lab.token)
    lab.check([(0, 1), (1, 2)] if was_pushed else [(0, 1)])


def test_an_accepted_change_that_cannot_be_written_is_fetched_later(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if is_journal(fd):
            raise OSError(errno.ENOSPC, "no space left")
        return write(fd, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        assert lab.ours.update(lab.ending()).step_index == 1
    assert any("not yet written here" in text for text in lab.ours.take_notices())
    with pytest.raises(StaleClaim):
        lab.ours.update(lab.ending())
    lab.check([(0, 1)])


LOST: dict[str, bytes | None] = {
    "no file": None,
    "an empty one": b"",
    "a torn one": b"{",
    "another type": b'{"tip": 1}',
    "noise": b"\0" * 5000,
}


@pytest.mark.parametrize("what", table(LOST, "no file"))
def test_a_damaged_remote_json_is_rebuilt(what: str, lab: Lab) -> None:
    path = lab.shared.clone("ours") / "sync" / "remote.json"
    path.unlink()
    content = LOST[what]
    if content is not None:
        path.write_bytes(content)
    go_on_with = lab.shared.store("ours")
    cases.commit(go_on_with, lab.token)
    cases.claim(lab.ours)
    lab.check([(0, 1)])


def lose_last_record(folder: Path) -> None:
    """Leave what a power cut may leave of the newest record: nothing."""
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "journal.jsonl").write_bytes(b"".join(lines[:-1]))
    (folder / "state.json").write_text(json.dumps(json.loads(lines[-2])["head"]))


def test_a_lost_record_is_recovered_by_a_process_that_pulled_before(lab: Lab) -> None:
    other, folder = lab.shared.store("ours"), lab.shared.clone("ours") / "sync"
    other.pull()
    lose_last_record(folder)
    with pytest.raises(ClaimHeld):
        cases.claim(other)
    cases.commit(other, lab.token)
    lab.check([(0, 1)])
