"""Linear layers that read their weights in the layout the processor multiplies fastest."""
