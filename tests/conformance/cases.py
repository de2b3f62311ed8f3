"""What the suite runs over: every method with every choice it offers, chains of filters, federations they accept.

Everything here follows from the fields of the structs and from the contract; nothing knows a method by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from fedzero import plugins
from fedzero.errors import FedzeroError
from fedzero.links import Chain
from fedzero.links.coders import Plain
from fedzero.methods.contract import Traits
from fedzero.methods.shared.seeded import SeededMethod
from fedzero.recipe import recipe as recipes
from fedzero.recipe.plan import Plan
from fedzero.testing.trial import DIMENSION, federation_for

KINDS = tuple(kind.type for kind in plugins.kinds("methods").values())

FEW_QUERIES = {"initial": 6, "a_step": 2, "candidates": 6, "around": 4, "around_candidates": 8}

# A choice a method may offer, by the name of the field: the values to try beside the base's.
CHOICES: dict[str, list[Any]] = {
    "local_steps": [3],
    "directions": [{"start": 3, "then": [[2, 6]]}],
    "rate": [{"kind": "inverse-sqrt", "start": 4e-3}, "auto"],
    "form": ["dense"],
    "optimizer": [{"kind": kind} for kind in ("sgd", "momentum", "adam", "sign")],
    "local_optimizer": [{"kind": kind} for kind in ("momentum", "adam", "sign")],
    "box": [[-0.5, 1.5]],
    "distribution": ["gaussian", "rademacher", "rank1", "sphere", "unit-sphere"],
    "difference": ["forward", "central", "mean"],
    "samples": ["all"],
    "rule": ["adam", "yogi", "adagrad"],
    "epsilon_at": ["outside"],
    "type": ["I"],
    "graph": [{"kind": "ring"}, {"kind": "edges", "pairs": [[0, 1], [1, 2], [2, 3]]}],
    "alpha": [0.0],
    "tau": [3],
    "pool": [64],
    "order": ["rounds"],
    "step": ["normalised", "rms"],
    "average": [3],
    "nu": [0.5],
    "clip": [0.1],
    "momentum": [0.5],
    "preset": ["authors", "shared"],
    "gamma": [{"kind": "inverse"}, {"kind": "constant", "value": 0.5}, {"kind": "corollary"}],
    "correction_at": ["start"],
    "surrogate": [{"window": {"kind": "recent", "count": 12}}],
    "transfer": [{"count": 40, "window": {"kind": "nearest", "count": 30}}],
    "active": [FEW_QUERIES | {"by": "chance"}, FEW_QUERIES | {"shared": True}],
}
BOTH_FORMS = ("type", "rule", "graph", "tau")
"""Choices that change what becomes of the contributions: tried dense and seeded."""
DENSE_ONLY = ("local_optimizer", "box")
"""Choices that leave nothing a scalar could stand for: tried dense."""
HOW_TO_ESTIMATE = (
    *("distribution", "difference", "samples", "rate", "local_steps", "local_optimizer"),
    *("preset", "gamma", "correction_at", "surrogate", "active"),
    *("step", "average"),
)
"""Choices that only change the numbers a client comes up with, not what is done with them; and those that one base
class makes for all (their runs are resumed, cut to 16 bits and so on in tests/methods/test_weighting.py)."""


def base_of(kind: Any) -> dict[str, Any]:
    """Several steps along several directions, scalars on the wire where there is a choice."""
    wanted = {"rate": 2e-3, "local_steps": 2, "directions": 5, "server_rate": 0.05, "form": "seeded"}
    wanted |= {"transfer": {"count": 40}, "active": FEW_QUERIES}
    table: dict[str, Any] = {"kind": kind.__struct_config__.tag}
    if "rate" in kind.__struct_fields__:
        table["rate"] = wanted["rate"]
    for name in [name for name in wanted if name in kind.__struct_fields__]:
        with suppress(msgspec.ValidationError):  # say, of methods that take one step only
            recipes.method(table | {name: wanted[name]})
            table[name] = wanted[name]
    return table


def _accepted(tables: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """Those that decode, and whose rules the method has: not every field of a name takes every value that another of
    the name does."""
    for table in tables:
        try:
            found = recipes.method(table)
            if isinstance(found, SeededMethod):
                found.check_chain()
        except (msgspec.ValidationError, FedzeroError):
            continue
        yield found


def _forms(name: str, fields: tuple[str, ...]) -> list[dict[str, str]]:
    """The forms to try a choice in, as what to change in the base."""
    if "form" in fields and name in BOTH_FORMS:
        return [{"form": "dense"}, {"form": "seeded"}]
    return [{"form": "dense"}] if "form" in fields and name in DENSE_ONLY else [{}]


def _variants(kind: Any) -> Iterator[Any]:
    fields, base = kind.__struct_fields__, base_of(kind)
    yield recipes.method(base)
    for name in sorted(set(fields) & CHOICES.keys()):
        forms = _forms(name, fields)
        yield from _accepted(base | {name: value} | form for value in CHOICES[name] for form in forms)


def _distinct(found: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(found))


VARIANTS = _distinct(variant for kind in KINDS for variant in _variants(kind))


def changes(algorithm: Any) -> dict[str, Any]:
    """What a variant has that its kind's base has not."""
    fields, base = msgspec.to_builtins(algorithm), msgspec.to_builtins(_base(algorithm))
    return {name: value for name, value in fields.items() if value != base[name]}


def _base(algorithm: Any) -> Any:
    return recipes.method(base_of(type(algorithm)))


def label(case: Any) -> str:
    """A test's name: the kind of method and what is special about the variant; the links of a chain."""
    if isinstance(case, Chain):
        return "+".join(link.__struct_config__.tag + "*" * getattr(link, "feedback", False) for link in case.links)
    if not isinstance(case, KINDS):
        return str(case)
    words = ((k, v.get("kind", "schedule") if isinstance(v, dict) else v) for k, v in changes(case).items())
    return "-".join((case.name, *(f"{k}={v}" for k, v in words)))


def traits_of(algorithm: Any) -> Traits:
    return _plan_of(algorithm).traits


def exchanges_of(algorithm: Any) -> int:
    return len(_plan_of(algorithm).cost(0).replies)


def _plan_of(algorithm: Any) -> Plan:
    federation = federation_for(algorithm)
    return Plan(algorithm, federation, None, DIMENSION)  # type: ignore[arg-type]


def writes_floats(algorithm: Any) -> bool:
    """False: its numbers travel in another way, in which there may be no NaN and no 1e30."""
    return isinstance(traits_of(algorithm).coder, Plain)


# One variant of a kind for every way its contributions are made into a model.
SHAPES = _distinct(v for v in VARIANTS if not changes(v).keys() & set(HOW_TO_ESTIMATE))


def travels(algorithm: Any) -> tuple[Any, ...]:
    traits = traits_of(algorithm)
    return type(algorithm), traits.seeded, traits.delivery, exchanges_of(algorithm)


# And fewer still: one for every way they travel.
WIRES = list({travels(v): v for v in reversed(SHAPES)}.values())[::-1]
BASES = [_base(variant) for variant in {type(v): v for v in VARIANTS}.values()]


def _every_choice_once() -> list[Any]:
    """All shapes; of ways to estimate, which methods share, each with the first method that offers it."""
    seen, kept = set(), []
    for variant in VARIANTS:
        made = {(name, str(value)) for name, value in changes(variant).items()}
        if variant in SHAPES or not made <= seen:
            kept.append(variant)
        seen |= made
    return kept


EVERY_CHOICE_ONCE = _every_choice_once()
UNLIKE = list({(t.seeded, t.remembers, exchanges_of(a)): a for a in reversed(WIRES) if (t := traits_of(a))}.values())
"""Methods that send and leave unlike things: what the server and the ledger do is the same for all others."""


def chain_of(*links: dict[str, Any]) -> Chain:
    return Chain(tuple(msgspec.convert(link, plugins.find("filters", link["kind"]).type) for link in links))


CLIP = {"kind": "clip", "norm": 0.05}
TOP_K, TOP_K_FEEDBACK = ({"kind": "top-k", "fraction": 0.3, "feedback": feedback} for feedback in (False, True))
SIGN, SIGN_FEEDBACK = ({"kind": "sign", "feedback": feedback} for feedback in (False, True))
QUANTISE, MEDIAN, TRIMMED = {"kind": "quantise"}, {"kind": "median"}, {"kind": "trimmed-mean", "fraction": 0.3}
CHAINS = [
    *(chain_of(link) for link in (CLIP, TOP_K, TOP_K_FEEDBACK, QUANTISE, SIGN, SIGN_FEEDBACK, MEDIAN, TRIMMED)),
    chain_of(CLIP, TOP_K, QUANTISE, MEDIAN),
    chain_of(TOP_K_FEEDBACK, SIGN),
    chain_of(CLIP, TOP_K_FEEDBACK, QUANTISE, TRIMMED),
]


def allowed(algorithm: Any, chain: Chain) -> bool:
    """Who compares clients number by number needs numbers that can be compared, and enough clients; and what a method
    carries on by itself must not be carried on a second time."""
    traits, combiner = traits_of(algorithm), chain.combiner
    if (chain.sparse and traits.whole) or (chain.feedback and (traits.self_correcting or traits.whole)):
        return False
    return combiner is None or (traits.comparable and federation_for(algorithm).cohort >= combiner.least())


PAIRS = [(algorithm, chain) for algorithm in WIRES for chain in CHAINS]
FILTERED = [pair for pair in PAIRS if allowed(*pair)]
REFUSED = [pair for pair in PAIRS if not allowed(*pair)]
KEEPS_A_REST = [(algorithm, chain) for algorithm, chain in FILTERED if chain.feedback]
