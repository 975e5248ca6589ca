"""Make call k of the system fail in a graph run's transition, for every k; then end the run."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sequencer import Capacity, FileStore, Head, Outcome, OutcomeStatus, SequencerError, commands
from sequencer.engine.graph_changes import GraphChanges
from sequencer.engine.run_commands import RunCommands
from sequencer.model.graph import record as flow_record
from sequencer.model.graph.transition import OpenTransition
from tests.concurrency.crash_points import LIMIT_S, Injector, nothing_waits_for_the_disk
from tests.contract import store_cases as cases
from tests.flows import workflow
from tests.long.report import Report, Size
from tests.property.amounts import in_memory

WORKFLOW = workflow("s --> a & b & c & h{{H}}; a & b & c & h --> j --> k")
NODES = ("s", "a", "b", "c", "j", "k")
MIN_POINTS = 20
Act = Callable[[GraphChanges], object]


def campaign(folder: Path, size: Size) -> Report:
    """SIGKILL, errors and half a write at every call of a graph run's transitions."""
    if size is Size.SHORT:
        with in_memory() as made:
            return _swept(made, (("kill", 1, 30), ("mixed", 16, 30)))
    faults = ("kill", "kill-after", "kill-half", "EIO", "ENOSPC", "EIO-after", "short")
    return _swept(folder, tuple((fault, 1, 1) for fault in faults))


def _swept(folder: Path, faults: tuple[tuple[str, int, int], ...]) -> Report:
    points, wrong = 0, list[str]()
    with nothing_waits_for_the_disk():
        for (name, in_documents), (fault, first, step) in itertools.product(
            itertools.product(SCENARIOS, (False, True)), faults
        ):
            place = folder / f"{name}-{in_documents}-{fault}"
            for at in itertools.count(first, step):
                said, found = tried(name, Injector(fault, at), place, in_documents=in_documents)
                wrong += [f"{name}, {fault} at call {at}: {text}" for text in found]
                if not said["was_killed"] and not said.get("has_fired", True):
                    break
                points += 1
    if points < MIN_POINTS:
        wrong.append(f"only {points} points: the calls are not seen any more")
    return Report({"crash points": points}, tuple(wrong))


# --- what is done ------------------------------------------------------------------------


def control(folder: Path) -> GraphChanges:
    return GraphChanges(FileStore(folder / "state.json", rotate_bytes=6_000, keep=1000), WORKFLOW)


def room(flow: GraphChanges, head: Head, slots: int = 8) -> Capacity:
    mine = os.getpid()
    gone = frozenset(c.token for c in head.claims if c.owner.pid != mine)
    return Capacity(flow.store.owner(), 60.0, cases.boot_clock(), slots, expired_tokens=gone)


def accept(flow: GraphChanges, node: str) -> None:
    """Keep an output of *node* and accept it; claim all that follows."""
    head = flow.store.view().head
    assert head is not None
    claim = next(claim for claim in head.claims if claim.step == node)
    reference = flow.store_output(claim.step_index, claim.token, f"output of {node}")
    outcome = Outcome(status=OutcomeStatus.OK, output=f"output of {node}")

    def act(step: OpenTransition) -> None:
        step.accept(claim.token, outcome, reference, {"status": "ok"})

    flow.update(act, lambda now: room(flow, now))


def by_hand(flow: GraphChanges) -> RunCommands:
    return RunCommands(flow.store, WORKFLOW)


def begun(flow: GraphChanges) -> None:
    by_hand(flow).begin()


def claim(flow: GraphChanges) -> None:
    flow.update(None, lambda now: room(flow, now))


def started(flow: GraphChanges) -> None:
    begun(flow)
    claim(flow)


def forked(flow: GraphChanges) -> None:
    started(flow)
    accept(flow, "s")


def asked(flow: GraphChanges) -> None:
    forked(flow)
    for node in "abc":
        accept(flow, node)


def in_a_child(flow: GraphChanges, act: Act) -> None:
    """Let a process do it that is dead afterwards."""
    child = os.fork()
    if child == 0:
        act(flow)
        os._exit(0)
    os.waitpid(child, 0)


def fail(flow: GraphChanges) -> None:
    """Let the first agent fail for good, which stops the others."""
    head = flow.store.view().head
    assert head is not None
    outcome = Outcome(status=OutcomeStatus.FAILED, error="pop")
    token = head.claims[0].token
    flow.update(lambda step: step.fail(token, outcome, {}, due=None, kind="error"), lambda _: None)


def failed(flow: GraphChanges) -> None:
    forked(flow)
    fail(flow)


SCENARIOS: Mapping[str, tuple[Act, Act]] = {
    "begin": (lambda _: None, begun),
    "claim": (begun, claim),
    "accept and claim three": (started, lambda flow: accept(flow, "s")),
    "accept": (forked, lambda flow: accept(flow, "b")),
    "fail": (forked, fail),
    "answer": (asked, lambda flow: by_hand(flow).do(commands.AnswerQuestion("h", "yes"), by="ann")),
    "take over": (lambda flow: in_a_child(flow, forked), claim),
    "retry": (failed, lambda flow: by_hand(flow).do(commands.RetryNow())),
}


# --- one try -----------------------------------------------------------------------------


def tried(
    name: str, injector: Injector, base: Path, *, in_documents: bool
) -> tuple[dict[str, Any], list[str]]:
    """Do *name* in a child under the fault; return what it said, and what is wrong afterwards."""
    folder = base / str(injector.at) / "sync"
    inline = flow_record.INLINE_ENTRIES, flow_record.SINCE_BYTES, flow_record.SHORTEST_CHAIN
    if in_documents:
        # Whole again every few transitions, so that documents are removed too.
        flow_record.INLINE_ENTRIES, flow_record.SINCE_BYTES, flow_record.SHORTEST_CHAIN = 0, 50, 0
    try:
        SCENARIOS[name][0](control(folder))
        before = _accepted(folder)
        said = _in_child(name, injector, folder)
        return said, violations(folder, before, said)
    finally:
        flow_record.INLINE_ENTRIES, flow_record.SINCE_BYTES, flow_record.SHORTEST_CHAIN = inline
        shutil.rmtree(base, ignore_errors=True)


def _accepted(folder: Path) -> list[dict[str, Any]]:
    return list(control(folder).store.history()) if folder.exists() else []


def _in_child(name: str, injector: Injector, folder: Path) -> dict[str, Any]:
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        try:
            os.write(write_fd, json.dumps(_act(name, injector, folder)).encode())
        except BaseException:  # noqa: BLE001 - the parent has to hear of it
            os.write(write_fd, json.dumps({"bug": traceback.format_exc()}).encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return {**(json.loads(text) if text else {}), "was_killed": os.WIFSIGNALED(status)}


def _act(name: str, injector: Injector, folder: Path) -> dict[str, Any]:
    """Do it under the fault, and once more if it was refused and nothing of it was accepted."""
    flow, action = control(folder), SCENARIOS[name][1]
    before = flow.store.view().head
    injector.install()
    refused = None
    try:
        injector.is_armed = True
        action(flow)
    except SequencerError as error:
        refused = error.message
    finally:
        injector.is_armed = False
    head = control(folder).store.view().head
    revision = before.revision if before else 0
    if refused is not None and (head.revision if head else 0) == revision:
        # The same process goes on with the marking that it kept.
        action(flow)
        head = control(folder).store.view().head
    return {
        "acknowledged": head.revision if head else 0,
        "has_fired": injector.has_fired,
        "refused": refused,
    }


def violations(folder: Path, before: list[dict[str, Any]], said: dict[str, Any]) -> list[str]:
    """Return what does not hold after another process has come and ended the run."""
    if "bug" in said:
        return [" | ".join(said["bug"].strip().splitlines()[-4:])]
    try:
        flow, wrong = control(folder), list[str]()
        begun(flow)
        head = flow.store.view().head
        assert head is not None
        if head.revision < said.get("acknowledged", 0):
            wrong.append(f"acknowledged {said['acknowledged']}, found {head.revision}")
        _end(flow)
        after = list(flow.store.history())
    except (AssertionError, SequencerError, StopIteration, LookupError):
        return [" | ".join(traceback.format_exc().strip().splitlines()[-4:])]
    if after[: len(before)] != before:
        wrong.append("what was accepted has changed")
    done = sorted(fact["step"] for fact in after if fact["event"] == "succeeded")
    if done != sorted(NODES):
        wrong.append(f"accepted {done}")
    tokens = [fact["token"] for fact in after if fact["event"] in ("claimed", "asked")]
    if len(tokens) != len(set(tokens)):
        wrong.append("a token was granted twice")
    wrong += [f"left behind: {path.name}" for path in folder.glob("*.tmp")]
    return wrong


def _end(flow: GraphChanges) -> None:
    """Bring the run to its end, as whoever comes next."""
    for _ in range(30):
        head = flow.store.view().head
        assert head is not None
        assert head.flow is not None
        if head.flow.status == "completed":
            _check_outputs(flow, head)
            return
        if head.flow.status == "failed":
            by_hand(flow).do(commands.RetryNow())
        flow.update(None, lambda now: room(flow, now))
        head = flow.store.view().head
        assert head is not None
        if head.claims:
            accept(flow, head.claims[0].step)
        elif flow.questions(head):
            by_hand(flow).do(commands.AnswerQuestion("h", "yes"), by="bob")
    raise AssertionError("it does not end")


def _check_outputs(flow: GraphChanges, head: Head) -> None:
    _, marking = flow.marking(head)
    for node in NODES:
        assert flow.read_text(marking.outputs[node]) == f"output of {node}", node
    assert flow.read_text(marking.outputs["h"]) == "yes"
