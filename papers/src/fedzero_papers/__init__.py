"""Experiments of the papers: their tasks, recipes, figures, and the command that reproduces them."""
