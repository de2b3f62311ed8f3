"""A run written down and made concrete."""
