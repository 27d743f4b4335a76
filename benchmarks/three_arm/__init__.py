"""The three-arm experiment: a hot cache and prefetch against the demo's synchronous lookup."""
