"""Memory tiers: where rows live, behind one protocol."""
