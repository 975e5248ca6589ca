"""Mermaid flowcharts, from text to the content of a chart. Entry point: `parser.read_chart`."""
