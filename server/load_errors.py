"""Errors of loading a model or its memory at start-up; their texts carry no paths."""

from __future__ import annotations


class LoadError(Exception):
    """The model or its memory cannot be served; one clear sentence for the person who starts it."""
