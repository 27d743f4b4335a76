"""The routes, one module per family."""
