"""What becomes of a round's scalars."""
