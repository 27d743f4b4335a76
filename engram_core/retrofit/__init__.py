"""Training of Engram tables for a frozen backbone."""
