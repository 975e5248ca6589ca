"""The pages of ``sequencer web``: the library in a browser, webhooks and MCP."""
