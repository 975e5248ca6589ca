"""Workflow files: Markdown with a chart and node sections. Entry point: `reader.read_flow`."""
