"""Runs: from a recipe to rounds on a ledger, and back."""
