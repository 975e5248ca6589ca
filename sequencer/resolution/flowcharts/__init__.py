"""Workflows written as Markdown with a Mermaid flowchart: from the text to a graph."""
