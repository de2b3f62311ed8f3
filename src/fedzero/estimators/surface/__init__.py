"""Models of one function that is asked at points of our choice, and where they say to ask next."""

from fedzero.estimators.surface.exact import ExactQuadratic, quadratic_of
from fedzero.estimators.surface.gradients import GradientProcess
from fedzero.estimators.surface.quadratic import QuadraticFit
from fedzero.estimators.surface.search import I64, Plan, Proposal, Trace, first_points, propose, stencil
from fedzero.estimators.surface.space import Space
from fedzero.estimators.surface.trust_region import Model, lowest_within, step_within

__all__ = [
    "I64",
    "ExactQuadratic",
    "GradientProcess",
    "Model",
    "Plan",
    "Proposal",
    "QuadraticFit",
    "Space",
    "Trace",
    "first_points",
    "lowest_within",
    "propose",
    "quadratic_of",
    "stencil",
    "step_within",
]
