"""Changes of a run while the disk refuses something, and what has to hold afterwards."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path

from sequencer.errors import StateRefused
from tests.concurrency.crash_points import SCENARIOS, new_store, violations


def apart(work: Callable[[], list[str]]) -> list[str]:
    """Return what *work* returns in a child; a store that nobody closed keeps its files' pages."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            told = work()
        except BaseException:  # noqa: BLE001 (whatever it is, the parent has to hear of it)
            told = [traceback.format_exc()]
        os.write(write_fd, json.dumps([text[-3000:] for text in told]).encode())
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(text) if text else ["the process was killed"]
    return found


def change(
    folder: Path, scenario: str, begin: Callable[[], object], end: Callable[[], object]
) -> list[str]:
    """Do *scenario* in *folder* between the *begin* and the *end* of the trouble, then go on.

    Returns what does not hold: a refusal says where and what to do, and refused or not the
    run goes on where it was, with every accepted step once.
    """
    SCENARIOS[scenario][0](folder)
    before = list(new_store(folder).history())
    store, action = new_store(folder), SCENARIOS[scenario][1]
    said: dict[str, object] = {}
    begin()
    try:
        action(store)
    except StateRefused as error:
        end()
        head = new_store(folder).view().head
        said = {"refused": error.message, "revision": head.revision if head else 0}
        # That of a heartbeat is the scenario's own: the store raises an OSError.
        if scenario != "heartbeat" and (str(folder) not in str(error) or not error.hint):
            said["bug"] = f"refused without a place or a word about what to do: {error}"
        action(store)
    finally:
        end()
    head = store.view().head
    said["acknowledged"] = head.revision if head else 0
    return violations(folder, before, said)
