"""The options that metrics add to commands; importing this module loads no metrics library."""

from __future__ import annotations

import click

from sequencer.cli.contributions import Contribution
from sequencer.cli.options import NewFile

METRICS = Contribution(
    "metrics",
    "sequencer.plugins.metrics.cli_metrics:report_metrics",
    takes=("metrics", "all_runs", "text_format", "output"),
    options=(
        click.option("--metrics", is_flag=True, help="Print metrics, for Prometheus."),
        click.option("--all-runs", is_flag=True, help="With --metrics: those of every run."),
        click.option(
            "--format",
            "text_format",
            metavar="F",
            type=click.Choice(["openmetrics", "prometheus"]),
            help="How metrics are written: openmetrics (default), or prometheus for a node "
            "exporter.",
        ),
        click.option(
            "--output",
            type=NewFile(),
            metavar="FILE",
            help="Write the metrics into FILE, whole or not at all.",
        ),
    ),
    flags=("metrics",),
    needs="metrics",
)
