"""A project: settings, trust and checks, and how a run is made from them."""
