"""The first-order way to a reward, on one machine.

    python -m bench.language.reinforce RECIPE [--device cuda] [--data DIR]

REINFORCE with a group baseline: every prompt is answered G times by sampling, and

    loss = −mean over answers of (r − mean of r over the prompt's G answers) · log p(answer)

is minimised by Adam or SGD. Model, trained layers, prompts, reward and evaluation are those of a recipe with
`measure = "reward"`; all clients' rows are in one place, and weights are float32. Progress is shown by generations
evaluated, which is what a zeroth-order run of the same recipe spends: 2 P · batch · cohort a round with central pairs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.table import show
from torch import Tensor

from fedzero.directions import Keys
from fedzero.oracles.generation import ENDED, left_padded
from fedzero.oracles.packing import mask_of
from fedzero.oracles.passes import NO_TERMS
from fedzero.oracles.products import products
from fedzero.oracles.reward import Prompts, RewardObjective
from fedzero.recipe import recipe as recipes
from fedzero.recipe.environment import Environment
from fedzero.recipe.setup import prepare


@dataclass(frozen=True)
class Found:
    """After so many steps: generations evaluated in all, reward on the test set, mean reward of the steps since the
    last row, and seconds of training."""

    step: int
    generations: int
    reward: float
    training: float
    seconds: float


def log_probabilities(module: Any, tokens: Tensor, said: Tensor, temperature: float) -> Tensor:
    """(R,): of what was said, (R, most), after prompts (3, R, T)."""
    _, rows, width = tokens.shape
    most = said.shape[1]
    further = torch.empty(3, rows, most, dtype=torch.int64, device=tokens.device)
    further[0], further[1] = said.clamp(min=0), torch.arange(rows, device=tokens.device)[:, None]
    further[2] = (tokens[1] >= 0).sum(1, keepdim=True) + torch.arange(most, device=tokens.device)
    whole = torch.cat([tokens, further], 2)
    mask = mask_of(whole, next(module.parameters()).dtype)
    logits = module(input_ids=whole[0], attention_mask=mask, position_ids=whole[2], use_cache=False).logits
    chances = torch.log_softmax(logits[:, width - 1 : -1].float() / temperature, -1)
    found = chances.gather(-1, said.clamp(min=0)[..., None])[..., 0]
    return (found * (said != ENDED)).sum(1)


def step(
    objective: RewardObjective, params: Any, asked: Prompts, group: int, normalise: bool, rows: int
) -> tuple[Tensor, float]:
    """The gradients of a step are added to the parameters', `rows` answers at a time; the mean reward."""
    said = objective.generated(params, (NO_TERMS,), asked)
    rewards = objective.scored(asked, said)[0].reshape(-1, group)
    advantages = rewards - rewards.mean(1, keepdims=True)
    if normalise:
        advantages /= rewards.std(1, keepdims=True) + 1e-6
    flat = torch.from_numpy(advantages.reshape(-1)).float().to(objective.device)
    total = torch.zeros((), device=objective.device)
    for first in range(0, len(asked), rows):
        part = slice(first, first + rows)
        if not bool(flat[part].any()):
            continue  # all answers of these prompts are equally good
        tokens = left_padded(asked.prompts[part]).to(objective.device)
        answers = torch.from_numpy(said[0, part]).to(objective.device)
        with torch.enable_grad(), products(objective.weight, objective.tf32):
            chances = log_probabilities(objective.module, tokens, answers, objective.decoding.temperature)
            loss = -(flat[part] * chances).sum() / len(asked)
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    return total, float(rewards.mean())


def drawn(data: Any, prompts: int, group: int, most: int, keys: Keys, number: int) -> Prompts:
    """Some prompts of the training rows, each `group` times in a row, with noise for each."""
    generator = keys.generator("reinforce", number)
    chosen = np.repeat(generator.choice(len(data.tokens), min(prompts, len(data.tokens)), replace=False), group)
    noise = generator.random((len(chosen), most))
    return Prompts(tuple(data.tokens[i] for i in chosen), tuple(data.rows[i] for i in chosen), None, noise)


def train(arguments: argparse.Namespace) -> list[Found]:
    sets = [f'task.dtype="{arguments.dtype}"', f'engine.device="{arguments.device}"', f"seed={arguments.seed}"]
    recipe = recipes.load(arguments.recipe, [*sets, *arguments.set])
    problem = prepare(recipe, Environment(arguments.data)).problem
    objective, params = problem.objective, problem.params
    if not isinstance(objective, RewardObjective):
        raise SystemExit(f'{arguments.recipe} has no reward: choose a recipe with task.measure = "reward"')
    objective.decoding = replace(objective.decoding, temperature=arguments.temperature)
    for part in objective.module.modules():
        if type(part).__name__.endswith("RotaryEmbedding"):  # what generation kept of it cannot be part of a gradient
            part.register_forward_hook(lambda _, given, tables: tuple(each.clone() for each in tables))
    trained = [p for p in objective.module.parameters() if p.requires_grad]
    kinds: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer = kinds[arguments.optimizer](trained, lr=arguments.rate)
    keys, data = Keys.of_seed(arguments.seed), getattr(problem.shards, "data")  # noqa: B009
    rewards: list[float] = []
    found = [Found(0, 0, objective.evaluate(params).others["reward"], float("nan"), 0.0)]
    spent, seconds = 0, 0.0
    for number in range(1, arguments.steps + 1):
        began = time.perf_counter()
        asked = drawn(data, arguments.prompts, arguments.group, objective.decoding.most, keys, number)
        optimizer.zero_grad(set_to_none=True)
        rewards.append(step(objective, params, asked, arguments.group, arguments.normalise, arguments.rows)[1])
        torch.nn.utils.clip_grad_norm_(trained, arguments.clip)
        optimizer.step()
        params.changed()
        spent, seconds = spent + len(asked), seconds + time.perf_counter() - began
        if number % arguments.every == 0 or number == arguments.steps:
            reward = objective.evaluate(params).others["reward"]
            found.append(Found(number, spent, reward, float(np.mean(rewards)), seconds))
            print(f"step {number} · {spent:,} generations · reward {reward:.4f}", flush=True)
            rewards.clear()
    return found


def main(argv: Sequence[str] | None = None) -> list[Found]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("recipe", help='with task.measure = "reward": a name or a file')
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another value of the recipe")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32", help="of the weights; Adam's steps are lost in 16 bits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=16, help="a step")
    parser.add_argument("--group", type=int, default=8, help="G, answers of a prompt")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--normalise", action="store_true", help="divide by the standard deviation of a group")
    parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of a gradient")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations")
    parser.add_argument("--rows", type=int, default=64, help="answers of a pass with gradients")
    parser.add_argument("--json", type=Path, help="write the rows of the table to this file, too")
    arguments = parser.parse_args(argv)
    if arguments.group < 2:
        parser.error("--group: a baseline needs two answers of a prompt at least")
    found = train(arguments)
    rows = [
        (str(each.step), f"{each.generations:,}", f"{each.reward:.4f}", f"{each.training:.4f}", f"{each.seconds:.1f}")
        for each in found
    ]
    title = f"REINFORCE, {arguments.recipe}: G {arguments.group}, {arguments.optimizer}, rate {arguments.rate:g}"
    show(title, rows, ("step", "generations", "reward", "training", "seconds"))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(each) for each in found]) + "\n")
    return found


if __name__ == "__main__":
    main()
