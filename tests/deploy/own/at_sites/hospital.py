"""What sites have and the server has not: data that differ from site to site."""

import os
from pathlib import Path

import numpy as np
import torch

from fedzero import Problem
from fedzero.model.params import Params
from fedzero.tasks.quadratic import QuadraticObjective, QuadraticShards


class Ward:
    """½‖x − centre‖², whichever client asks."""

    def __init__(self, centre: float):
        self.centre = centre

    def build(self, clients: int, context, task) -> Problem:
        centres = np.full((clients, 8), self.centre)
        params = Params.of_vector(torch.zeros(8, device=context.device))
        objective, shards = QuadraticObjective(np.ones(8), centres), QuadraticShards(centres, 0.0)
        return Problem(params, objective, shards, {"model": "a point"}, private_facts={"data": f"{self.centre:.3f}"})


class Broken(Ward):
    def build(self, clients: int, context, task) -> Problem:
        raise KeyError("patient 4711")


north, south, moved, broken = Ward(0.0), Ward(2.0), Ward(3.125), Broken(0.0)
named = Ward(1.0)
named.name = "radiology"


def cost(x) -> float:
    """A function that is dear: every call is noted where the test can read it."""
    with Path(os.environ["COST_CALLS"]).open("a") as calls:
        calls.write(".")
    return float(((x - 0.75) ** 2).sum())


def secretive(x) -> float:
    raise ValueError("patient 4711")
