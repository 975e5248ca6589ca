"""Which step comes next and what its prompt says: resolver, registry, prompts, routing."""
