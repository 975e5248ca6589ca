"""Mermaid flowcharts, from text to what a chart says: `parser.read_chart` is the way in."""
