"""Text that a causal language model goes on with: many prompts side by side, one token of each at a time.

    said = generate(module, PaddedPrompts.of(prompts), Decoding(most=8, ends=ends))     (R, 8) tokens, −1 after the end

Prompts are padded on the left, so that the last column is the last token of every row. A mask hides the padding,
positions count from the beginning of the prompt, and keys and values of past tokens are kept in buffers that are made
once. Tokens that all prompts begin with, such as worked examples, are read once and not once a row. So a row gets the
tokens it would get alone, but for rounding. Rows may be at one point, or blocks of rows each at a point of their own.

A model that heeds no mask, positions or kept keys reads its rows again for every token, padded on the right.
"""

from fedzero.oracles.generation.decoder import ENDED, Decoder, Decoding, choose, generate
from fedzero.oracles.generation.decoders import Decoders, most_columns
from fedzero.oracles.generation.key_values import KeyValues
from fedzero.oracles.generation.prompts import PaddedPrompts, chunks, common_length, left_padded
from fedzero.oracles.generation.strategies import STEP, Around, Stepwise, Whole, columns_of, read

__all__ = [
    "ENDED",
    "STEP",
    "Around",
    "Decoder",
    "Decoders",
    "Decoding",
    "KeyValues",
    "PaddedPrompts",
    "Stepwise",
    "Whole",
    "choose",
    "chunks",
    "columns_of",
    "common_length",
    "generate",
    "left_padded",
    "most_columns",
    "read",
]
