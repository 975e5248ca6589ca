"""Workflow files: Markdown with a chart and a section for each node."""
