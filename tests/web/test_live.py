"""What is sent as it happens: a page's changed parts once each, a log's lines by their offsets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from sequencer.project import open_project
from sequencer.web.live import Channels, followed_log
from sequencer.web.server import Rendered, Renderer
from tests.web.conftest import Client

RUN = "/p/shop/login-timeout"


class Counted:
    """Renders pages, and counts how often."""

    def __init__(self, client: Client) -> None:
        self.renderer = Renderer(client.site, client.keys.form)
        self.count = 0

    def __call__(self, address: str) -> Rendered:
        self.count += 1
        return self.renderer.rendered(address)


async def next_event(stream: AsyncIterator[str]) -> tuple[str, Any]:
    """Return id and data of the next event that is no comment."""
    while True:
        text = await asyncio.wait_for(anext(stream), 10)
        fields = dict(line.split(": ", 1) for line in text.strip().splitlines() if ": " in line)
        if "data" in fields:
            return fields["id"], json.loads(fields["data"])


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_change_sends_the_parts_that_changed_made_once_for_all(
    client: Client, tmp_path: Path
) -> None:
    made = Counted(client)

    async def work() -> None:
        channels = Channels(made)
        streams = [channels.follow(RUN, "") for _ in range(20)]
        firsts = [await next_event(stream) for stream in streams]
        assert {first[0] for first in firsts} == {firsts[0][0]}
        assert set(firsts[0][1]) == {"nav", "head", "asks", "graph", "steps", "time"}
        before = made.count
        # By another process than the pages, as it were: nothing tells the channel but the files.
        control = open_project(tmp_path / "shop", trust=True).run("login-timeout").control
        await asyncio.to_thread(control.pause)
        seconds = [await next_event(stream) for stream in streams]
        assert all("paused" in parts["head"] for _, parts in seconds)
        assert all("graph" not in parts for _, parts in seconds)
        assert made.count - before <= 3
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        assert channels._open == {}

    run(work)


def test_a_reader_who_has_seen_it_gets_only_what_is_new(client: Client, tmp_path: Path) -> None:
    made = Counted(client)
    seen = made("/runs").id

    async def work() -> None:
        channels = Channels(made)
        stream = channels.follow("/runs", seen)
        assert (await anext(stream)).startswith("retry")
        waiting = asyncio.ensure_future(next_event(stream))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        project = open_project(tmp_path / "docs", trust=True)
        await asyncio.to_thread(project.run(None).control.resume)
        number, parts = await waiting
        assert number != seen
        assert "paused" not in parts["list"]
        channels.close()

    run(work)


def test_a_run_that_appears_is_sent(client: Client, tmp_path: Path) -> None:
    async def work() -> None:
        channels = Channels(Counted(client))
        stream = channels.follow("/runs", "")
        await next_event(stream)
        project = open_project(tmp_path / "docs", trust=True)
        await asyncio.to_thread(project.run("hotfix").control.begin)
        _, parts = await next_event(stream)
        assert "hotfix" in parts["list"]
        channels.close()

    run(work)


def test_a_log_is_followed_by_whole_lines_from_where_the_reader_is(tmp_path: Path) -> None:
    log = tmp_path / "iter-00001_plan.log"
    log.write_bytes("first\nsécond\nthi".encode())

    async def work() -> None:
        stream = followed_log(log, 6)
        offset, text = await next_event(stream)
        assert (offset, text) == ("14", "sécond\n")
        waiting = asyncio.ensure_future(next_event(stream))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "half a line is not shown"
        with log.open("ab") as file:
            file.write(b"rd \x1b[31mred\x1b[0m <b>\nfou")
        offset, text = await waiting
        assert text == "third red <b>\n"
        assert int(offset) == 14 + len(b"third \x1b[31mred\x1b[0m <b>\n")
        await stream.aclose()  # type: ignore[attr-defined]

    run(work)


def test_a_line_without_an_end_comes_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "iter-00001_plan.log"
    log.write_bytes(b"x" * 200_000)

    async def work() -> None:
        stream = followed_log(log, 0)
        sizes = [len((await next_event(stream))[1]) for _ in range(3)]
        assert sizes == [64 * 1024] * 3
        await stream.aclose()  # type: ignore[attr-defined]

    run(work)
