"""A process that posts what is behind its cursors, and dies where it is told to.

usage: killed.py FOLDER URL before-post|after-post|after-cursor|never
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sequencer.executors.redaction import Redaction
from sequencer.plugins.posting.cursor import Cursor, CursorFile
from sequencer.plugins.posting.poster import Poster
from sequencer.plugins.posting.protocol import Post
from sequencer.plugins.posting.web import WebhookSink
from sequencer.store.file import FileStore


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, url: str, moment: str) -> None:
    class Dying(WebhookSink):
        def post(self, post: Post) -> None:
            if moment == "before-post":
                die()
            super().post(post)
            if moment == "after-post":
                die()

    class DyingFile(CursorFile):
        def write(self, cursor: Cursor) -> None:
            super().write(cursor)
            if moment == "after-cursor" and cursor.index == 0:
                die()

    store = FileStore(Path(folder) / "sync" / "state.json")
    activities = Poster(store, [Dying("hook", url, {})], Redaction(), lambda _: None)
    for queue in activities._queues:
        queue._file = DyingFile(store.folder, "hook")
    with activities:
        pass
    print("lived")


if __name__ == "__main__":
    main(*sys.argv[1:])
