"""Artefacts on disk: manifests, native tables, and `open_table` that reads them."""
