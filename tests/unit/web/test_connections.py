"""The limits of connections to the web pages: how many, and how long one may stay silent."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn

from sequencer.plugins.web import server


def test_the_limit_is_the_one_that_test_server_exceeds() -> None:
    assert server.MAX_CONNECTIONS == 1000


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADERS_S", 0.1)

    async def app(scope: object, receive: object, send: object) -> None:
        raise AssertionError((scope, receive, send))

    async def work() -> None:
        config = uvicorn.Config(
            app, http=server.IdleTimeoutProtocol, lifespan="off", log_config=None
        )
        config.load()
        state = uvicorn.Server(config)
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(
            lambda: server.IdleTimeoutProtocol(config, state.server_state, {}), "127.0.0.1", 0
        )
        port = listening.sockets[0].getsockname()[1]
        for said in (b"", b"GET / HTTP/1.1\r\nhost: x\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        listening.close()

    asyncio.run(work())
