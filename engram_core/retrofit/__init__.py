"""Writes facts into the rows of a memory whose backbone stays frozen."""
