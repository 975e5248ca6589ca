"""Sequencer: run the steps of a workflow in order, and keep the progress in files."""
