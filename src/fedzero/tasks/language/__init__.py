"""Language models that fill in a word: prompts, rows, tokens, models, and the task made of them."""

from fedzero.tasks.language.adapting import Full, Layers, Lora, Names, Span
from fedzero.tasks.language.task import Language
from fedzero.tasks.language.texts import TEXTS, Text

__all__ = ["TEXTS", "Full", "Language", "Layers", "Lora", "Names", "Span", "Text"]
