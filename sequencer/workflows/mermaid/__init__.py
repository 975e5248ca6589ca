"""Mermaid flowcharts: from text to what a chart says."""
