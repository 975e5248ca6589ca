"""``python -m bench``: measure, print, judge."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from bench.child import CHECKOUT, Absent
from bench.disk import spread
from bench.machine import describe_machine
from bench.measuring import FULL, QUICK, Effort
from bench.peers.installing import install_all
from bench.plotting import plot
from bench.report import as_json, machine_line, summary, table
from bench.result import Row, absent, failures
from bench.rows import FAMILIES, Setting, measure


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("more_rows", nargs=-1, type=click.Choice(list(FAMILIES)), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Without peers and with a short long run; <= 60 s.")
@click.option("--json", "as_text", is_flag=True, help="Print JSON instead of the table.")
@click.option(
    "--rows", multiple=True, type=click.Choice(list(FAMILIES)), help="Only these (repeatable)."
)
@click.option("--peers/--no-peers", default=None, help="Peers beside; default: not with --quick.")
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the ratios to this PNG, and write the table beside it (.txt).",
)
@click.option("--seconds", type=click.FloatRange(0), help="Measuring time of each row.")
@click.option("--steps", type=click.IntRange(200), help="Length of the long run.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=CHECKOUT / "build" / "bench",
    help="Where to measure: on the disk that counts.",
)
@click.option("--install-peers", is_flag=True, help="Install the peers, and do nothing else.")
def main(
    more_rows: tuple[str, ...],
    *,
    quick: bool,
    as_text: bool,
    rows: tuple[str, ...],
    peers: bool | None,
    picture: Path | None,
    seconds: float | None,
    steps: int | None,
    folder: Path,
    install_peers: bool,
) -> None:
    """Measure the sequencer beside the floor and its peers; exit 1 if a ratio is over its bar."""
    if install_peers:
        sys.exit(_install())
    if sys.platform != "linux":
        raise click.ClickException("the floor is written for Linux: inotify, fdatasync, /proc")
    effort = _effort(seconds, steps, is_quick=quick)
    with_peers = not quick if peers is None else peers
    chosen = list(dict.fromkeys([*rows, *more_rows])) or list(FAMILIES)
    found = _measure(chosen, folder, effort, with_peers=with_peers)
    machine = describe_machine(folder)
    result = as_json(found, machine, is_quick=quick)
    text = "\n\n".join((table(found), summary(found, is_quick=quick), machine_line(machine)))
    print(json.dumps(result, indent=1, ensure_ascii=False) if as_text else text)
    if picture is not None:
        picture.with_suffix(".txt").write_text(f"{text}\n", encoding="utf-8")
        try:
            plot(result, picture)
        except Absent as reason:
            raise click.ClickException(f"no picture: {reason}") from None
    sys.exit(1 if failures(found) else 0)


def _effort(seconds: float | None, steps: int | None, *, is_quick: bool) -> Effort:
    effort = QUICK if is_quick else FULL
    if seconds is not None:
        effort = replace(effort, seconds=seconds, idle_s=max(min(seconds, effort.idle_s), 0.5))
    return effort if steps is None else replace(effort, growth_steps=steps)


def _measure(chosen: list[str], folder: Path, effort: Effort, *, with_peers: bool) -> list[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    spread(folder)
    found: list[Row] = []
    for family in chosen:
        print(f"bench: {family}: {FAMILIES[family]}", file=sys.stderr)
        place = spread(Path(tempfile.mkdtemp(prefix=f"{family}-", dir=folder)))
        try:
            rows = measure(family, Setting(place, effort, with_peers))
        except Absent as reason:
            rows = [absent(family, "nothing", str(reason))]
        finally:
            shutil.rmtree(place, ignore_errors=True)
        # A full run takes minutes; whoever watches, or stops it, has what there is so far.
        print(table(rows), file=sys.stderr)
        found += rows
    return found


def _install() -> int:
    problems = install_all()
    for peer, problem in problems.items():
        print(f"{peer}: {problem or 'installed'}")
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    main()
