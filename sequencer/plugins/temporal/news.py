"""Reports what other processes do with a run that this process works on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from temporalio.client import RPCTimeoutOrCancelledError, WorkflowHistoryEventAsyncIterator
from temporalio.service import RPCError

from sequencer.engine.events import AttemptElsewhere, Emit, HeadMoved, NoticeGiven
from sequencer.model.head import Head
from sequencer.plugins.temporal.connection import CALL_TIMEOUT, identity
from sequencer.plugins.temporal.events import AttemptReporter, EventReader, RunSeen
from sequencer.plugins.temporal.remote_run import RemoteRun
from sequencer.plugins.temporal.wire import (
    unpack_head,
)

LOOK_S = 1.0
"""Seconds between polls for what other processes do with a run that this one works on."""
PAGE_EVENTS = 1000


class NewsWatch:
    """Reports what other processes do with a run while this process works on it."""

    def __init__(
        self, store: RemoteRun, head: Head, started_here: Callable[[], int], emit: Emit
    ) -> None:
        """Watch the run in *store*, starting after *head*.

        *started_here* counts the attempts of this process: while there are no others, no events
        have to be read.
        """
        self._store, self._started_here, self._emit = store, started_here, emit
        self._first, self._revision = head.token, head.revision
        self._news, self._reader = AttemptReporter(head, identity()), EventReader()
        self._execution = ""
        self._pages: WorkflowHistoryEventAsyncIterator | None = None

    async def follow(self, ended: asyncio.Event) -> None:
        """Look every `LOOK_S`, and one last time after *ended* is set."""
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), LOOK_S)
            await self.report_news()

    async def notify(self, text: str) -> None:
        """Report *text* as a notice to people."""
        await asyncio.to_thread(self._emit, NoticeGiven(text))

    async def report_news(self) -> None:
        """Report what is new; the caller reports a server that does not answer."""
        with contextlib.suppress(RPCError, RPCTimeoutOrCancelledError):
            async for event in self._collect_news():
                # In a thread: writing to a terminal may block.
                await asyncio.to_thread(self._emit, event)

    async def _collect_news(self) -> AsyncIterator[HeadMoved | AttemptElsewhere]:
        description = await self._store.fetch_description()
        if description is None:
            return
        head = unpack_head(description.memo)
        untaken_count = sum(not description.pending.get(claim.token) for claim in head.claims)
        if self._news.running or head.token - self._first - untaken_count > self._started_here():
            await self._read(description, head.revision)
            for event in self._news.report_ends(self._reader):
                yield event
        for event in self._news.report_starts(head, description.pending):
            yield event
        if head.revision != self._revision:
            self._revision = head.revision
            yield HeadMoved(head)

    async def _read(self, description: RunSeen, revision: int) -> None:
        """Read the run's events up to *revision*."""
        if self._execution != description.execution:
            await self._drain(None)
            handle = await self._store.get_handle(description.execution)
            self._execution = description.execution
            self._reader.scheduled.clear()
            # While the execution is open, each request for a page waits for new events.
            self._pages = handle.fetch_history_events(
                page_size=PAGE_EVENTS, wait_new_event=True, rpc_timeout=CALL_TIMEOUT
            )
        await self._drain(revision)

    async def _drain(self, revision: int | None) -> None:
        """Read up to *revision*; None: up to the end of the execution."""
        while self._pages is not None and (revision is None or self._reader.revision < revision):
            await self._pages.fetch_next_page()
            for event in self._pages.current_page or ():
                self._reader.read(event)
            if self._pages.next_page_token is None:
                self._pages = None
