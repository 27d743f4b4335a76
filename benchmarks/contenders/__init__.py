"""What the table compares, one module each; `catalogue` knows them all."""
