"""Routes, one module per family."""
