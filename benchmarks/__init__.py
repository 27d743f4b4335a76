"""Commands that measure what the project claims; no part of the installed product."""
