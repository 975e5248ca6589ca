"""Drawings of workflows and runs: text diagrams, Mermaid, SVG and PNG."""
