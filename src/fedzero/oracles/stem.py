"""The layers below the first trained one: what they make of a batch is the same at every point, so it is made once.

    stem = Stem.of(module)                  None, where no layer can be spared
    hidden = stem.made(run)                 (R, T, H): what comes out of them when `run` is called
    with stem.given(hidden):                they hand that on instead of running
        run()

The test set comes back all the time, so what they make of it is kept, as much as there is room for. Prompts are kept
with the sheet they stand on, not one by one: how a product is rounded may depend on the rows beside it, and a run that
was killed and resumed shall meet the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedzero.oracles.piecewise import blocks

BYTES = 1 << 30
"""Kept at most."""
TRIED = ((5, 4, 3, 2), (2, 3, 4, 5, 6, 7))
"""Prompts a model is tried with; every vocabulary has these tokens."""


class FrozenPrefix:
    """Takes hold of layers: from now on they hand on what is given, or run as before."""

    def __init__(self, layers: Sequence[nn.Module], capacity: int = BYTES):
        self.layers, self.capacity = tuple(layers), capacity
        self._kept: dict[bytes, Tensor] = {}
        self._given: Tensor | None = None
        self._making = False
        self._before = [layer.forward for layer in layers]
        for layer in layers:
            layer.forward = self._sparing(layer.forward, layer is layers[-1])

    @staticmethod
    def of(module: nn.Module, capacity: int = BYTES) -> FrozenPrefix | None:
        """The layers that run before anything that is trained; None if there are none, or none can be spared."""
        layers = _before_training(module)
        if not layers:
            return None
        stem = FrozenPrefix(layers, capacity)
        if stem._can_be_spared(module):
            return stem
        stem.let_go()
        return None

    def let_go(self) -> None:
        """Layers as they were."""
        for layer, forward in zip(self.layers, self._before, strict=True):
            layer.forward = forward

    def made(self, run: Callable[[], object]) -> Tensor:
        """(R, T, H): what comes out of these layers when `run` is called; it is not called to its end."""
        self._making = True
        try:
            with torch.no_grad():
                run()
        except _Enough as enough:
            return enough.hidden
        finally:
            self._making = False
        raise AssertionError("layers that ran before anything that is trained do not run any more")

    def kept(self, tokens: Tensor, run: Callable[[], object]) -> Tensor:
        """The same, made once for the same tokens while there is room."""
        key = tokens.cpu().numpy().tobytes()
        if key in self._kept:
            return self._kept[key]
        hidden = self.made(run)
        if self.bytes + hidden.nbytes <= self.capacity:
            self._kept[key] = hidden
        return hidden

    @property
    def bytes(self) -> int:
        return sum(hidden.nbytes for hidden in self._kept.values())

    @contextmanager
    def given(self, hidden: Tensor) -> Iterator[None]:
        """For a while, the layers hand on (R, T, H), whatever they get."""
        self._given = hidden
        try:
            yield
        finally:
            self._given = None

    def _sparing(self, run: Callable[..., Any], last: bool) -> Callable[..., Any]:
        """`run`, unless there is something to hand on. Layers give a tensor, or a tuple that begins with it."""
        bare = True

        def forward(*arguments: Any, **named: Any) -> Any:
            nonlocal bare
            if self._given is not None:
                return self._given if bare else (self._given,)
            made = run(*arguments, **named)
            bare = isinstance(made, Tensor)
            if last and self._making:
                raise _Enough(made if bare else made[0])
            return made

        return forward

    def _can_be_spared(self, module: nn.Module) -> bool:
        """Some models reach past layers, to what one far below has left behind. Found out by trying.

        All is made before any of it is handed on: what was left behind is then another prompt's.
        """
        plain = [_logits(module, prompt) for prompt in TRIED]
        try:
            made = [self.made(partial(_logits, module, prompt)) for prompt in TRIED]
            for prompt, hidden, wanted in zip(TRIED, made, plain, strict=True):
                with self.given(hidden):
                    found = _logits(module, prompt)
                if float((found - wanted).abs().max()) > 1e-3 * float(wanted.abs().max()):
                    return False
        except Exception:  # whatever such a model makes of it
            return False
        return True


class _Enough(Exception):
    """Ends a pass where the layers below do: nobody asked for the rest."""

    def __init__(self, hidden: Tensor):
        super().__init__()
        self.hidden = hidden


def _logits(module: nn.Module, prompt: Sequence[int]) -> Tensor:
    """Uncompiled: code of their own for these shapes would take longer than trying them."""
    device = next(module.parameters()).device
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        logits: Tensor = module(input_ids=torch.tensor([prompt], device=device), use_cache=False).logits
    return logits.float()


def _before_training(module: nn.Module) -> list[nn.Module]:
    """Layers without trained weights that run before any block with some, in the order they run in."""
    known = dict(blocks(module))
    order: list[nn.Module] = []
    hooks = [block.register_forward_pre_hook(lambda block, _: order.append(block)) for block in known]
    try:
        _logits(module, TRIED[0])
    finally:
        for hook in hooks:
            hook.remove()
    found: list[nn.Module] = []
    for block in order:
        if any(p.requires_grad for p in block.parameters(recurse=known[block])):
            break
        if known[block]:
            found.append(block)
    return found
