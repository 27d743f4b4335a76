"""The HTTP server around the engine."""
