"""Repeatable measurements and the commands that made the shipped data."""
