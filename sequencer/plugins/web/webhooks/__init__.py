"""Webhooks: a tracker's delivery is checked, stored once, and acted on."""
