"""Schemas and error bodies that middleware, streaming and routes share."""
