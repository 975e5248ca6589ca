"""What is sent as it happens: a page's changed parts once each, a log's lines by their offsets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from sequencer import commands, open_project
from sequencer.plugins.web.live import Channels, FolderWatcher, RenderedPage, follow_log
from sequencer.plugins.web.server import Answers
from sequencer.plugins.web.site import Site

RUN = "/p/shop/login-timeout"


class Counted:
    """Renders pages, and counts how often."""

    def __init__(self, site: Site) -> None:
        self.renderer = Answers(site, "a token of the forms")
        self.count = 0

    def __call__(self, address: str) -> RenderedPage:
        found = self.renderer.render_parts(address)
        self.count += 1
        return found


async def next_event(stream: AsyncIterator[str]) -> tuple[str, Any]:
    """Return id and data of the next event that is no comment."""
    while True:
        text = await asyncio.wait_for(anext(stream), 10)
        fields = dict(line.split(": ", 1) for line in text.strip().splitlines() if ": " in line)
        if "data" in fields:
            return fields["id"], json.loads(fields["data"])


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_change_sends_only_changed_parts_rendered_once_for_all_readers(
    site: Site, tmp_path: Path
) -> None:
    made = Counted(site)

    async def work() -> None:
        channels = Channels(made)
        streams = [channels.follow(RUN, "") for _ in range(20)]
        firsts = [await next_event(stream) for stream in streams]
        assert {first[0] for first in firsts} == {firsts[0][0]}
        assert set(firsts[0][1]) == {"nav", "head", "asks", "graph", "steps", "time"}
        while made.count < 2:  # noqa: ASYNC110 - it is made in a thread
            # Once more after it is watched: what changed in between was not heard.
            await asyncio.sleep(0.01)
        before = made.count
        # By another process than the pages, as it were: nothing tells the channel but the files.
        control = open_project(tmp_path / "shop", trust=True).run("login-timeout").commands
        await asyncio.to_thread(lambda: control.do(commands.Pause()))
        for stream in streams:
            # The timeline of a run that waits ends at the present, so it may come before that.
            parts = {"time": ""}
            while set(parts) == {"time"}:
                _, parts = await next_event(stream)
            assert "paused" in parts["head"]
            assert "graph" not in parts
        assert made.count - before <= 3
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]
        assert channels._open == {}

    run(work)


def test_hundreds_of_folders_use_one_inotify_instance(tmp_path: Path) -> None:
    """A user has 128 of them in all, for every program."""
    folders = [tmp_path / str(number) for number in range(300)]
    for folder in folders:
        folder.mkdir()

    def instances() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum("inotify" in str(link.readlink()) for link in links if link.is_symlink())

    async def work() -> None:
        heard = asyncio.Event()
        watcher = FolderWatcher(heard.set)
        before = instances()
        assert watcher.watch([*folders, tmp_path / "none"])
        assert instances() - before == 1
        assert not watcher.watch([*folders, tmp_path / "none"]), "nothing is new"
        for folder in (folders[0], folders[-1]):
            heard.clear()
            (folder / "state.json").write_text("{}")
            await asyncio.wait_for(heard.wait(), 10)
        # Another folder at the same place is another folder.
        (folders[7]).rename(tmp_path / "old")
        folders[7].mkdir()
        assert watcher.watch(folders)
        watcher.close()
        assert instances() == before

    run(work)


def test_a_failing_page_ends_its_stream_and_is_rendered_again(site: Site) -> None:
    made, faults = Counted(site), [ZeroDivisionError("a fault of ours")]

    def render(address: str) -> RenderedPage:
        if faults:
            raise faults.pop()
        return made(address)

    async def work() -> None:
        channels = Channels(render)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        assert [text async for text in channels.follow(RUN, "")] == ["retry: 2000\n\n"]
        again = channels.follow(RUN, "")
        assert (await next_event(again))[0]
        channels.close()

    run(work)


def test_a_change_between_reading_and_watching_is_not_lost(site: Site, tmp_path: Path) -> None:
    made, control = Counted(site), open_project(tmp_path / "docs", trust=True).run(None).commands

    def render(address: str) -> RenderedPage:
        found = made(address)
        if made.count == 1:
            control.do(commands.Resume())
        return found

    async def work() -> None:
        channels = Channels(render)
        stream = channels.follow("/runs", "")
        assert "paused" in (await next_event(stream))[1]["list"]
        assert "paused" not in (await next_event(stream))[1]["list"]
        channels.close()

    run(work)


def test_a_reader_with_the_current_page_gets_only_changes(site: Site, tmp_path: Path) -> None:
    made = Counted(site)
    seen = made("/runs").id

    async def work() -> None:
        channels = Channels(made)
        stream = channels.follow("/runs", seen)
        assert (await anext(stream)).startswith("retry")
        waiting = asyncio.ensure_future(next_event(stream))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        project = open_project(tmp_path / "docs", trust=True)
        await asyncio.to_thread(lambda: project.run(None).do(commands.Resume()))
        number, parts = await waiting
        assert number != seen
        assert "paused" not in parts["list"]
        channels.close()

    run(work)


def test_a_run_that_appears_is_sent(site: Site, tmp_path: Path) -> None:
    async def work() -> None:
        channels = Channels(Counted(site))
        stream = channels.follow("/runs", "")
        await next_event(stream)
        project = open_project(tmp_path / "docs", trust=True)
        await asyncio.to_thread(project.run("hotfix").commands.begin)
        _, parts = await next_event(stream)
        assert "hotfix" in parts["list"]
        channels.close()

    run(work)


def test_a_log_is_followed_by_whole_lines_from_where_the_reader_is(tmp_path: Path) -> None:
    log = tmp_path / "iter-00001_plan.log"
    log.write_bytes("first\nsécond\nthi".encode())

    async def work() -> None:
        stream = follow_log(log, 6)
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
        stream = follow_log(log, 0)
        sizes = [len((await next_event(stream))[1]) for _ in range(3)]
        assert sizes == [64 * 1024] * 3
        await stream.aclose()  # type: ignore[attr-defined]

    run(work)
