"""Webhooks: a tracker's delivery is checked, kept once, and acted on."""
