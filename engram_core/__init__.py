"""Engram memories for transformers: exact hashing, tables, prefetch and the gated module."""
