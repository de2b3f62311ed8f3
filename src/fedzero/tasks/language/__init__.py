"""Language models that fill in a word: prompts, rows, tokens, models, and the task."""

from fedzero.tasks.language.task import Language
from fedzero.tasks.language.texts import TEXTS, Text
from fedzero.tasks.language.trainable import Full, Layers, Lora, Names, Span

__all__ = ["TEXTS", "Full", "Language", "Layers", "Lora", "Names", "Span", "Text"]
