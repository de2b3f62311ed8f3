"""The layers before the first trained one: their output for a batch is the same at every point, so it is computed once.

    prefix = FrozenPrefix.of(module)        None where no layer can be skipped
    hidden = prefix.compute(run)            (R, T, H): the output of these layers when `run` is called
    with prefix.returning(hidden):          they return it instead of running
        run()

Outputs for the test set are cached up to a limit, by batch and not by prompt: how a product is rounded may depend on
the other rows, and a run that was killed and resumed must get the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedzero.oracles.piecewise import blocks, logits_of

CACHE_BYTES = 1 << 30
PROBES = ((5, 4, 3, 2), (2, 3, 4, 5, 6, 7))
"""Prompts a model is tried with; every vocabulary has these tokens."""


class FrozenPrefix:
    """Wraps the `forward` of layers: they return a given output, or run as before."""

    def __init__(self, layers: Sequence[nn.Module], capacity: int = CACHE_BYTES):
        self.layers, self.capacity = tuple(layers), capacity
        self._cache: dict[bytes, Tensor] = {}
        self._output: Tensor | None = None
        self._computing = False
        self._originals = [layer.forward for layer in layers]
        for layer in layers:
            layer.forward = self._wrapped(layer.forward, layer is layers[-1])

    @staticmethod
    def of(module: nn.Module, capacity: int = CACHE_BYTES) -> FrozenPrefix | None:
        """The layers that run before anything that is trained; None if there are none, or they cannot be skipped."""
        layers = _frozen_layers(module)
        if not layers:
            return None
        prefix = FrozenPrefix(layers, capacity)
        if prefix._can_be_skipped(module):
            return prefix
        prefix.unwrap()
        return None

    def unwrap(self) -> None:
        for layer, forward in zip(self.layers, self._originals, strict=True):
            layer.forward = forward

    def compute(self, run: Callable[[], object]) -> Tensor:
        """(R, T, H): the output of these layers when `run` is called; the pass ends there."""
        self._computing = True
        try:
            with torch.no_grad():
                run()
        except _PrefixDone as done:
            return done.hidden
        finally:
            self._computing = False
        raise AssertionError("the frozen layers found when the model was loaded did not run")

    def cached(self, tokens: Tensor, run: Callable[[], object]) -> Tensor:
        """`compute`, once for the same tokens while the cache has room."""
        key = tokens.cpu().numpy().tobytes()
        if key in self._cache:
            return self._cache[key]
        hidden = self.compute(run)
        if self.bytes + hidden.nbytes <= self.capacity:
            self._cache[key] = hidden
        return hidden

    @property
    def bytes(self) -> int:
        return sum(hidden.nbytes for hidden in self._cache.values())

    @contextmanager
    def returning(self, hidden: Tensor) -> Iterator[None]:
        """The layers return (R, T, H), whatever their input."""
        self._output = hidden
        try:
            yield
        finally:
            self._output = None

    def _wrapped(self, run: Callable[..., Any], last: bool) -> Callable[..., Any]:
        """A layer returns a tensor, or a tuple that begins with it."""
        bare = True

        def forward(*arguments: Any, **named: Any) -> Any:
            nonlocal bare
            if self._output is not None:
                return self._output if bare else (self._output,)
            output = run(*arguments, **named)
            bare = isinstance(output, Tensor)
            if last and self._computing:
                raise _PrefixDone(output if bare else output[0])
            return output

        return forward

    def _can_be_skipped(self, module: nn.Module) -> bool:
        """Whether logits stay the same; not where later layers read a side effect of these.

        All outputs are computed before any is used: side effects are then another prompt's.
        """
        expected = [_logits(module, prompt) for prompt in PROBES]
        try:
            outputs = [self.compute(partial(_logits, module, prompt)) for prompt in PROBES]
            for prompt, hidden, wanted in zip(PROBES, outputs, expected, strict=True):
                with self.returning(hidden):
                    found = _logits(module, prompt)
                if float((found - wanted).abs().max()) > 1e-3 * float(wanted.abs().max()):
                    return False
        except Exception:  # of any kind, from the model's own code
            return False
        return True


class _PrefixDone(Exception):
    """Ends a pass after the frozen layers."""

    def __init__(self, hidden: Tensor):
        super().__init__()
        self.hidden = hidden


def _logits(module: nn.Module, prompt: Sequence[int]) -> Tensor:
    with torch.compiler.set_stance("force_eager"):  # compiling for these shapes would take longer
        return logits_of(module, torch.tensor([prompt]))


def _frozen_layers(module: nn.Module) -> list[nn.Module]:
    """Layers without trained weights that run before any block with some, in the order they run in."""
    is_layer = dict(blocks(module))
    order: list[nn.Module] = []
    hooks = [block.register_forward_pre_hook(lambda block, _: order.append(block)) for block in is_layer]
    try:
        _logits(module, PROBES[0])
    finally:
        for hook in hooks:
            hook.remove()
    frozen: list[nn.Module] = []
    for block in order:
        if any(p.requires_grad for p in block.parameters(recurse=is_layer[block])):
            break
        if is_layer[block]:
            frozen.append(block)
    return frozen
