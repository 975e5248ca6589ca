"""Performs the steps of a run in this program, one cycle, without any agent.

Killed in the middle of a step and started again, it tries that step again; an accepted
step is never done twice.
"""

from pathlib import Path

import sequencer

HERE = Path(__file__).parent


def perform(step: str) -> str:
    """Do what *step* asks for and return its answer."""
    files = [path for path in HERE.rglob("*") if path.is_file()]
    if step == "measure":
        return f"{len(files)} files"
    return f"the largest is {max(files, key=lambda path: path.stat().st_size).name}"


def main() -> None:
    """Take two turns and show what the run has accepted."""
    run = sequencer.open_run(HERE)
    for _ in range(2):
        with run.turn() as turn:
            turn.output = perform(turn.step)
    for fact in run.history():
        if fact["event"] == "succeeded":
            print(fact["step_index"], fact["step"], fact["outcome"]["output"])


if __name__ == "__main__":
    main()
