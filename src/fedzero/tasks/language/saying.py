"""What a language model says after prompts, and how good that is: exact match and token F1, as SQuAD has them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch

from fedzero.model.params import Params
from fedzero.oracles import Sample
from fedzero.oracles.generation import ENDED, STEP, Decoders, Decoding, PaddedPrompts, chunks, most_columns
from fedzero.oracles.passes import TOKENS
from fedzero.oracles.products import products
from fedzero.tasks.language.attention import many_rows
from fedzero.tasks.language.generating import Generate, decoding_of, reader_of
from fedzero.tasks.language.pretrained import Pretrained

SHOWN, LONGEST = 6, 300
"""Samples that a ledger gets, and characters of each text."""
ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_MARKS = str.maketrans("", "", string.punctuation)


class Speaker:
    """The likeliest text of a model after prompts of at most `longest` tokens; layers run as they are written."""

    def __init__(self, model: Pretrained, wanted: Generate, longest: int, tf32: bool = False):
        self.model, self.wanted, self.longest, self.tf32 = model, wanted, longest, tf32
        self.weight = next(model.module.parameters())
        self.read = reader_of(model, wanted.stop)

    @cached_property
    def _decoders(self) -> Decoders:
        tokens = TOKENS[self.weight.device.type]
        columns = most_columns(self.model.module, self.weight) if self._decoding.stepwise else tokens
        return Decoders(self.model.module, columns)

    @cached_property
    def _decoding(self) -> Decoding:
        return decoding_of(self.model, self.wanted, self.longest)

    def said(self, params: Params, prompts: Sequence[Sequence[int]]) -> list[str]:
        """What follows each of the prompts, without blanks around it; the module has these parameters."""
        found, most, device = [""] * len(prompts), self._decoding.most, self.weight.device
        step = 1 if device.type == "cpu" else STEP
        with torch.compiler.set_stance("force_eager"), products(self.weight, self.tf32), many_rows(self.model.module):
            for which in chunks(prompts, most, TOKENS[device.type], self._decoders.columns):
                padded = PaddedPrompts.of([prompts[i] for i in which], step).to(device)
                decoder, _ = self._decoders.of(params, padded, self._decoding, False)
                for i, tokens in zip(which, decoder(padded).tolist(), strict=True):
                    found[i] = self.read([token for token in tokens if token != ENDED]).strip()
        return found


class Quality:
    """Metrics of what is said after some prompts, each with the responses that are right there."""

    def __init__(self, speaker: Speaker, prompts: Sequence[Sequence[int]], right: Sequence[Sequence[str]]):
        self.speaker, self.prompts, self.right = speaker, prompts, right
        self.around: Callable[[Params], AbstractContextManager[None]] = lambda params: nullcontext()
        """puts the module at these parameters"""

    def samples(self, params: Params) -> list[Sample]:
        """The first few, with the end of each prompt."""
        prompts = self.prompts[:SHOWN]
        if not prompts:
            return []
        with self.around(params):
            said = self.speaker.said(params, prompts)
        ends = [self.speaker.model.tokenizer.decode(p, skip_special_tokens=True)[-LONGEST:] for p in prompts]
        each = zip(ends, said, self.right[:SHOWN], strict=True)
        return [Sample(prompt, text[:LONGEST], right[0][:LONGEST]) for prompt, text, right in each]

    def of(self, params: Params) -> dict[str, float]:
        if not self.prompts:
            return {}
        with self.around(params):
            said = self.speaker.said(params, self.prompts)
        each = list(zip(said, self.right, strict=True))
        return {
            name: sum(max(score(text, one) for one in right) for text, right in each) / len(each)
            for name, score in (("exact_match", exact_match), ("token_f1", token_f1))
        }


def normalised(text: str) -> str:
    """Small letters, without punctuation and articles, single blanks."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_MARKS)).split())


def exact_match(said: str, right: str) -> float:
    return float(normalised(said) == normalised(right))


def token_f1(said: str, right: str) -> float:
    """2 P R / (P + R) over the words that both have; 1 where neither has any."""
    own, wanted = normalised(said).split(), normalised(right).split()
    if not own or not wanted:
        return float(own == wanted)
    return 2 * (Counter(own) & Counter(wanted)).total() / (len(own) + len(wanted))
