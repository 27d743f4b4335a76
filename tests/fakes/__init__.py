"""Stand-ins with the real interfaces, for tests that need no model."""
