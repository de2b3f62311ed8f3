"""Recipes that come with the package."""
