<<<<<<< HEAD
"""The HTTP server: settings, lifecycle, routes, metrics and the serving engine."""

__version__ = "0.1.0"
=======
"""The HTTP server around the engine."""
>>>>>>> main
