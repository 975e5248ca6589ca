"""What has changed, sent to browsers as it happens: pages by their parts, logs by their lines.

No file is polled: the kernel tells of changes in the folders that a page is about, and only
while somebody looks. A page is made once a change, however many browsers follow it. The id
of an event says what its reader has seen, so that after a break only what is missing comes.

Not promised: a change that happens on another machine's disk, before our own store hears of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from sequencer.cli.views.text import plain
from sequencer.engine.logs import sent_texts
from sequencer.errors import SequencerError
from sequencer.plugins.web.pages import Page
from sequencer.store import folder as folders
from sequencer.store.watch import Notifier, notifier

SETTLE_S = 0.04
"""Changes that come together are one."""
SILENCE_S = 15.0
"""After which a comment finds out whether the reader is still there."""
RECHECK_S = 30.0
"""A lease runs out, and a file system may not tell; then a page is made again."""
REMOTE_S = 1.0
"""The same where runs are on a server, which wakes nobody."""
CHUNK_BYTES = 64 * 1024


class MadePage(NamedTuple):
    """The parts of a page, and what identifies just these."""

    page: Page
    parts: dict[str, str]
    id: str


class Wakes:
    """Hears of changes in folders, as long as it is open."""

    def __init__(self, woken: Callable[[], None]) -> None:
        """Call *woken*, in the running loop, whenever something has changed."""
        self._woken = woken
        self._watched: set[tuple[Path, int]] = set()
        self._notifier: Notifier | None = None
        self._loop = asyncio.get_running_loop()

    def watch(self, paths: Iterable[Path]) -> bool:
        """Hear of *paths* from now on, and of no others; return whether these are new ones."""
        wanted = {(path, number) for path in paths if (number := _number(path))}
        if wanted == self._watched:
            return False
        self.close()
        try:
            first, *more = (path for path, _ in wanted)
            self._notifier = notifier(first, None, *more)
        except (OSError, ValueError):
            # Gone, or the system has no more to give: the recheck has to do.
            return False
        self._watched = wanted
        self._loop.add_reader(self._notifier.fileno(), self._heard, self._notifier)
        return True

    def _heard(self, made: Notifier) -> None:
        if made.has_changed():
            self._woken()

    def close(self) -> None:
        """Hear of nothing any more."""
        if self._notifier is not None:
            self._loop.remove_reader(self._notifier.fileno())
            self._notifier.close()
        self._notifier, self._watched = None, set()


def _number(path: Path) -> int:
    """Return what tells a folder from another one at the same *path*; 0: there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


class PageChannel:
    """One page that somebody follows."""

    def __init__(self, address: str, render: Callable[[str], MadePage]) -> None:
        """Follow the page at *address*, made by *render*."""
        self.made: MadePage | None = None
        self.is_over = False
        self._address, self._render = address, render
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._wakes = Wakes(self._changed.set)
        self._task = asyncio.create_task(self._work())
        self.readers = 0

    async def _work(self) -> None:
        try:
            while True:
                self._changed.clear()
                made = await anyio.to_thread.run_sync(self._render, self._address)
                is_new = self.made is None or made.id != self.made.id
                self.made = made
                if is_new:
                    self._tell()
                if self._wakes.watch((*made.page.folders, *made.page.lists)):
                    # What has changed between the reading and this was not heard.
                    self._changed.set()
                try:
                    recheck_s = REMOTE_S if made.page.is_remote else RECHECK_S
                    await asyncio.wait_for(self._changed.wait(), recheck_s)
                except TimeoutError:
                    continue
                await asyncio.sleep(SETTLE_S)
        except SequencerError:
            # The run or its project is gone: whoever loads the page again is told.
            return
        finally:
            # Also after a fault: nobody waits for a page that is not made any more.
            self.is_over = True
            self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def newer(self, seen: str) -> MadePage | None:
        """Return the page as soon as it is not the one that was *seen*; None after a silence."""
        while not self.is_over and (self.made is None or self.made.id == seen):
            try:
                await asyncio.wait_for(self._news.wait(), SILENCE_S)
            except TimeoutError:
                return None
        return self.made

    def close(self) -> None:
        """Follow it no more."""
        self._task.cancel()
        self._wakes.close()


class Channels:
    """The pages that are followed, each once."""

    def __init__(self, render: Callable[[str], MadePage]) -> None:
        """Follow pages that *render* makes of their addresses."""
        self._render = render
        self._open: dict[str, PageChannel] = {}

    async def follow(self, address: str, seen: str) -> AsyncIterator[str]:
        """Yield the events of the page at *address* for a reader who has *seen* one."""
        channel = self._open.get(address)
        if channel is None or channel.is_over:
            channel = self._open[address] = PageChannel(address, self._render)
        channel.readers += 1
        known: dict[str, str] = {}
        try:
            yield "retry: 2000\n\n"
            while True:
                made = await channel.newer(seen)
                if channel.is_over:
                    return
                if made is None:
                    yield ": still here\n\n"
                    continue
                parts = {name: text for name, text in made.parts.items() if known.get(name) != text}
                seen, known = made.id, dict(made.parts)
                yield event("parts", json.dumps(parts), made.id)
        finally:
            channel.readers -= 1
            if not channel.readers:
                channel.close()
                if self._open.get(address) is channel:
                    del self._open[address]

    def close(self) -> None:
        """Follow nothing any more."""
        for channel in self._open.values():
            channel.close()
        self._open.clear()


def event(name: str, data: str, number: object) -> str:
    """Return one event of a stream; *data* has no line end."""
    return f"id: {number}\nevent: {name}\ndata: {data}\n\n"


async def followed_log(path: Path, offset: int) -> AsyncIterator[str]:
    """Yield what the log at *path* has behind *offset*, then what is written, as whole lines.

    The id of an event is the offset behind its last line.
    """
    changed = asyncio.Event()
    wakes = Wakes(changed.set)
    wakes.watch([path.parent])
    try:
        yield "retry: 2000\n\n"
        while True:
            changed.clear()
            text, behind = await anyio.to_thread.run_sync(lines_from, path, offset)
            if behind > offset:
                offset = behind
                yield event("lines", json.dumps(text), offset)
                continue
            try:
                await asyncio.wait_for(changed.wait(), SILENCE_S)
            except TimeoutError:
                yield ": still here\n\n"
            await asyncio.sleep(SETTLE_S)
    finally:
        wakes.close()


def lines_from(path: Path, offset: int) -> tuple[str, int]:
    """Return the whole lines of the log at *path* from *offset* on, at most a chunk, and the end.

    A line that is longer than a chunk comes in pieces.
    """
    try:
        fd = folders.open_file(path, os.O_RDONLY)
    except (OSError, SequencerError):
        return "", offset
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return "", offset
        sent = sent_texts(fd) if offset < CHUNK_BYTES else None
        if sent is not None and sent.start <= offset < sent.end:
            # What was sent has its own place on the page.
            offset = sent.end
        data = os.pread(fd, CHUNK_BYTES, offset)
    finally:
        os.close(fd)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == CHUNK_BYTES:
        end = len(data)
    return plain(data[:end].decode("utf-8", "replace")), offset + end
