"""The pages of ``sequencer web``: the same library in a browser; see docs/decisions/0015-web.md."""
