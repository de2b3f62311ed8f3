"""Recipes of the papers' experiments."""
