"""What `[privacy]` puts between clients and the model: bounded units as integers, and sums with noise. No recipe names
these by itself."""
