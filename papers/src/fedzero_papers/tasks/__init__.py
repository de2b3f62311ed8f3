"""Tasks of the papers' experiments."""
