"""apache-burr: one action of an application whose state SQLitePersister keeps."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.serving import Answer, serve


def begin() -> tuple[dict[str, Any], Answer]:
    """Build the application on a database in the folder of the first argument."""
    core: Any = import_module("burr.core")
    persistence: Any = import_module("burr.core.persistence")
    persister = persistence.SQLitePersister.from_values(str(Path(sys.argv[1]) / "burr.db"))
    persister.initialize()

    def step(state: Any) -> Any:
        return state.update(done=state["done"] + 1)

    action = core.action(reads=["done"], writes=["done"])(step)
    application = (
        core.ApplicationBuilder()
        .with_actions(step=action)
        .with_transitions(("step", "step"))
        .with_entrypoint("step")
        .with_state(done=0)
        .with_identifiers(app_id="bench", partition_key="bench")
        .with_state_persister(persister)
        .build()
    )

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        seconds = []
        for _ in range(request["count"]):
            started = time.perf_counter()
            application.step()
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds}

    return {"what": f"apache-burr {version('apache-burr')}, SQLitePersister"}, answer


if __name__ == "__main__":
    serve(begin)
