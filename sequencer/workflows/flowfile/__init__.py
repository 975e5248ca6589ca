"""Workflow files: Markdown with a chart and a section a node. `reader.read_flow` is the way in."""
