"""A run: from a recipe to rounds on a ledger, and back."""
