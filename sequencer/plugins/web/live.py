"""Sends changes to browsers as they happen: changed parts of pages, new lines of logs.

No file is polled: the kernel reports changes in a page's folders, and only while a browser
follows the page. A page is made once per change, for all browsers that follow it. The id of an
event identifies what its reader has seen, so after a break only missing events are sent.

Not promised: a change on another machine's disk before our own store notices it.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import anyio.to_thread
from msgspec import Struct

from sequencer.cli.views.text import strip_controls
from sequencer.engine.logs import read_sent_texts
from sequencer.errors import SequencerError
from sequencer.plugins.web.pages import Page
from sequencer.store import folder as folders
from sequencer.store.watch import Notifier, start_notifier

SETTLE_S = 0.04
"""Changes within this time are sent together."""
SILENCE_S = 15.0
"""After this time without events, a comment checks whether the reader is still connected."""
RECHECK_S = 30.0
"""A page is rendered again this often: leases expire, and some file systems report no changes."""
REMOTE_S = 1.0
"""The same for runs on a server, which reports no changes."""
CHUNK_BYTES = 64 * 1024


class RenderedPage(Struct, frozen=True):
    """The parts of a page, and a digest of them as their id."""

    page: Page
    parts: dict[str, str]
    id: str


class FolderWatcher:
    """Watches folders for changes until it is closed."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """Call *on_change* in the running loop after each change."""
        self._on_change = on_change
        self._watched: set[tuple[Path, int]] = set()
        self._notifier: Notifier | None = None
        self._loop = asyncio.get_running_loop()

    def watch(self, paths: Iterable[Path]) -> bool:
        """Watch only *paths* from now on; return whether they differ from the ones before."""
        targets = {(path, number) for path in paths if (number := _read_inode(path))}
        if targets == self._watched:
            return False
        self.close()
        try:
            first_path, *other_paths = (path for path, _ in targets)
            self._notifier = start_notifier(first_path, None, *other_paths)
        except (OSError, ValueError):
            # A folder is gone, or the system has no watches left; the recheck still works.
            return False
        self._watched = targets
        self._loop.add_reader(self._notifier.fileno(), self._notify_if_changed, self._notifier)
        return True

    def _notify_if_changed(self, notifier: Notifier) -> None:
        if notifier.has_changed():
            self._on_change()

    def close(self) -> None:
        """Stop watching; `watch` can start again."""
        if self._notifier is not None:
            self._loop.remove_reader(self._notifier.fileno())
            self._notifier.close()
        self._notifier, self._watched = None, set()


def _read_inode(path: Path) -> int:
    """Return the inode of the folder at *path*, which a new folder there changes; 0: none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


class PageChannel:
    """One page that browsers follow."""

    def __init__(self, address: str, render: Callable[[str], RenderedPage]) -> None:
        """Start to follow the page at *address*; *render* makes it, in a thread."""
        self.made: RenderedPage | None = None
        self.is_over = False
        self._address, self._render = address, render
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._watcher = FolderWatcher(self._changed.set)
        self._task = asyncio.create_task(self._follow_page())
        self.readers = 0

    async def _follow_page(self) -> None:
        try:
            while True:
                self._changed.clear()
                made_page = await anyio.to_thread.run_sync(self._render, self._address)
                is_new = self.made is None or made_page.id != self.made.id
                self.made = made_page
                if is_new:
                    self._notify()
                if self._watcher.watch((*made_page.page.folders, *made_page.page.lists)):
                    # A change between rendering and watching would be missed: render again.
                    self._changed.set()
                try:
                    recheck_s = REMOTE_S if made_page.page.is_remote else RECHECK_S
                    await asyncio.wait_for(self._changed.wait(), recheck_s)
                except TimeoutError:
                    continue
                await asyncio.sleep(SETTLE_S)
        except SequencerError:
            # The run or its project is gone; loading the page again shows that.
            return
        finally:
            # Also after a bug: no reader may wait for a page that is no longer rendered.
            self.is_over = True
            self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_newer(self, seen: str) -> RenderedPage | None:
        """Wait for a page other than the one *seen* and return it; None after `SILENCE_S`."""
        while not self.is_over and (self.made is None or self.made.id == seen):
            try:
                await asyncio.wait_for(self._news.wait(), SILENCE_S)
            except TimeoutError:
                return None
        return self.made

    def close(self) -> None:
        """Stop following the page."""
        self._task.cancel()
        self._watcher.close()


class Channels:
    """The followed pages; browsers that follow the same address share one channel."""

    def __init__(self, render: Callable[[str], RenderedPage]) -> None:
        """Start with no pages; *render* returns the page at an address."""
        self._render = render
        self._open: dict[str, PageChannel] = {}

    async def follow(self, address: str, seen: str) -> AsyncIterator[str]:
        """Yield the events of the page at *address* to a reader that has the page *seen*."""
        channel = self._open.get(address)
        if channel is None or channel.is_over:
            channel = self._open[address] = PageChannel(address, self._render)
        channel.readers += 1
        known_parts: dict[str, str] = {}
        try:
            yield "retry: 2000\n\n"
            while True:
                made_page = await channel.wait_for_newer(seen)
                if channel.is_over:
                    return
                if made_page is None:
                    yield ": still here\n\n"
                    continue
                parts = {
                    name: text
                    for name, text in made_page.parts.items()
                    if known_parts.get(name) != text
                }
                seen, known_parts = made_page.id, dict(made_page.parts)
                yield format_event("parts", json.dumps(parts), made_page.id)
        finally:
            channel.readers -= 1
            if not channel.readers:
                channel.close()
                if self._open.get(address) is channel:
                    del self._open[address]

    def close(self) -> None:
        """Stop following all pages."""
        for channel in self._open.values():
            channel.close()
        self._open.clear()


def format_event(name: str, data: str, number: object) -> str:
    """Return one event of a stream; *data* has no line end."""
    return f"id: {number}\nevent: {name}\ndata: {data}\n\n"


async def follow_log(path: Path, offset: int) -> AsyncIterator[str]:
    """Yield the lines of the log at *path* after *offset*, then new ones; always whole lines.

    The id of an event is the offset after its last line.
    """
    change = asyncio.Event()
    watcher = FolderWatcher(change.set)
    watcher.watch([path.parent])
    try:
        yield "retry: 2000\n\n"
        while True:
            change.clear()
            text, end = await anyio.to_thread.run_sync(read_lines, path, offset)
            if end > offset:
                offset = end
                yield format_event("lines", json.dumps(text), offset)
                continue
            try:
                await asyncio.wait_for(change.wait(), SILENCE_S)
            except TimeoutError:
                yield ": still here\n\n"
            await asyncio.sleep(SETTLE_S)
    finally:
        watcher.close()


def read_lines(path: Path, offset: int) -> tuple[str, int]:
    """Return whole lines of the log at *path* from *offset*, and the offset after them.

    At most `CHUNK_BYTES` are read; a longer line comes in pieces.
    """
    try:
        fd = folders.open_file(path, os.O_RDONLY)
    except (OSError, SequencerError):
        return "", offset
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return "", offset
        sent_texts = read_sent_texts(fd) if offset < CHUNK_BYTES else None
        if sent_texts is not None and sent_texts.start <= offset < sent_texts.end:
            # The page shows the texts that were sent in another place.
            offset = sent_texts.end
        data = os.pread(fd, CHUNK_BYTES, offset)
    finally:
        os.close(fd)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == CHUNK_BYTES:
        end = len(data)
    return strip_controls(data[:end].decode("utf-8", "replace")), offset + end
