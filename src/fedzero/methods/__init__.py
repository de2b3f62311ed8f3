"""All that an author of a method imports, and the methods: one paper, one file.

    from fedzero.methods import StepInputs, Seeded, SeededMethod, pack

A recipe's `[algorithm]` table is decoded straight into a method. Names are imported when they are first asked for, so
that a method can import them from here, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from fedzero.directions import SHARED as SHARED
    from fedzero.directions import Distribution as Distribution
    from fedzero.directions import Domain as Domain
    from fedzero.directions import Keys as Keys
    from fedzero.directions import Program as Program
    from fedzero.directions import Stream as Stream
    from fedzero.directions import Terms as Terms
    from fedzero.directions.terms import F32 as F32
    from fedzero.directions.terms import F64 as F64
    from fedzero.directions.terms import U64 as U64
    from fedzero.errors import FedzeroError as FedzeroError
    from fedzero.estimators.spsa import Difference as Difference
    from fedzero.estimators.spsa import direction_keys as direction_keys
    from fedzero.estimators.spsa import points_of as points_of
    from fedzero.estimators.spsa import probes as probes
    from fedzero.estimators.spsa import queries_of as queries_of
    from fedzero.estimators.spsa import slopes as slopes
    from fedzero.estimators.subspace import coordinates as coordinates
    from fedzero.estimators.subspace import orthonormal as orthonormal
    from fedzero.links import Coder as Coder
    from fedzero.links.coders import Bits as Bits
    from fedzero.links.coders import Doubles as Doubles
    from fedzero.methods.baffle import Baffle as Baffle
    from fedzero.methods.contract import EVERYTHING as EVERYTHING
    from fedzero.methods.contract import MAX_ABS_COORDINATE as MAX_ABS_COORDINATE
    from fedzero.methods.contract import Contribution as Contribution
    from fedzero.methods.contract import Cost as Cost
    from fedzero.methods.contract import Federation as Federation
    from fedzero.methods.contract import Form as Form
    from fedzero.methods.contract import Intermediate as Intermediate
    from fedzero.methods.contract import IntermediateResult as IntermediateResult
    from fedzero.methods.contract import Memory as Memory
    from fedzero.methods.contract import Method as Method
    from fedzero.methods.contract import Numbers as Numbers
    from fedzero.methods.contract import Part as Part
    from fedzero.methods.contract import RuleState as RuleState
    from fedzero.methods.contract import Scale as Scale
    from fedzero.methods.contract import State as State
    from fedzero.methods.contract import StepInputs as StepInputs
    from fedzero.methods.contract import Traits as Traits
    from fedzero.methods.contract import Turn as Turn
    from fedzero.methods.contract import Vectors as Vectors
    from fedzero.methods.contract import Work as Work
    from fedzero.methods.contract import advance_round as advance_round
    from fedzero.methods.decomfl import DeComFL as DeComFL
    from fedzero.methods.dzopa import Dzopa as Dzopa
    from fedzero.methods.fedavg import FedAvg as FedAvg
    from fedzero.methods.fedkseed import FedKSeed as FedKSeed
    from fedzero.methods.fedkseedpro import FedKSeedPro as FedKSeedPro
    from fedzero.methods.fedprox import FedProxZO as FedProxZO
    from fedzero.methods.fedzo import FedZO as FedZO
    from fedzero.methods.feedsign import FeedSign as FeedSign
    from fedzero.methods.fzoos import FZooS as FZooS
    from fedzero.methods.hiso import HiSo as HiSo
    from fedzero.methods.mezo import MeZO as MeZO
    from fedzero.methods.responsesurface import ResponseSurface as ResponseSurface
    from fedzero.methods.rules.arithmetic import power as power
    from fedzero.methods.rules.arithmetic import root as root
    from fedzero.methods.rules.chain import ChainState as ChainState
    from fedzero.methods.rules.chain import KernelState as KernelState
    from fedzero.methods.rules.contract import At as At
    from fedzero.methods.rules.contract import Fact as Fact
    from fedzero.methods.rules.contract import KernelRule as KernelRule
    from fedzero.methods.rules.contract import Rule as Rule
    from fedzero.methods.rules.contract import RuleTraits as RuleTraits
    from fedzero.methods.rules.contract import Step as Step
    from fedzero.methods.rules.contract import average as average
    from fedzero.methods.rules.contract import joined as joined
    from fedzero.methods.rules.kernels import Adam as Adam
    from fedzero.methods.rules.kernels import Moments as Moments
    from fedzero.methods.rules.kernels import Momentum as Momentum
    from fedzero.methods.rules.kernels import Optimizer as Optimizer
    from fedzero.methods.rules.kernels import Sgd as Sgd
    from fedzero.methods.rules.kernels import Sign as Sign
    from fedzero.methods.rules.kernels import dense_step as dense_step
    from fedzero.methods.scaffold import ScaffoldZO as ScaffoldZO
    from fedzero.methods.shared.corrections import Constant as Constant
    from fedzero.methods.shared.corrections import Gamma as Gamma
    from fedzero.methods.shared.corrections import Inverse as Inverse
    from fedzero.methods.shared.corrections import control_variate as control_variate
    from fedzero.methods.shared.corrections import proximal as proximal
    from fedzero.methods.shared.corrections import transferred as transferred
    from fedzero.methods.shared.graphs import Complete as Complete
    from fedzero.methods.shared.graphs import Graph as Graph
    from fedzero.methods.shared.local_steps import Box as Box
    from fedzero.methods.shared.local_steps import LastTurns as LastTurns
    from fedzero.methods.shared.local_steps import LocalSteps as LocalSteps
    from fedzero.methods.shared.local_steps import OwnDirections as OwnDirections
    from fedzero.methods.shared.local_steps import add_within as add_within
    from fedzero.methods.shared.local_steps import advanced as advanced
    from fedzero.methods.shared.local_steps import difference_of as difference_of
    from fedzero.methods.shared.local_steps import estimate as estimate
    from fedzero.methods.shared.local_steps import mean_walk as mean_walk
    from fedzero.methods.shared.local_steps import refuse_empty as refuse_empty
    from fedzero.methods.shared.local_steps import run_local_steps as run_local_steps
    from fedzero.methods.shared.local_steps import scalars_of_all as scalars_of_all
    from fedzero.methods.shared.local_steps import shares_of as shares_of
    from fedzero.methods.shared.local_steps import vector_of as vector_of
    from fedzero.methods.shared.local_steps import walk as walk
    from fedzero.methods.shared.local_steps import walk_terms as walk_terms
    from fedzero.methods.shared.seeded import Samples as Samples
    from fedzero.methods.shared.seeded import SeededMethod as SeededMethod
    from fedzero.methods.shared.seeded import sample_of as sample_of
    from fedzero.methods.zoadafl import ZOAdaFL as ZOAdaFL
    from fedzero.methods.zofedht import ZOFedHT as ZOFedHT
    from fedzero.methods.zones import ZoneS as ZoneS
    from fedzero.model.numbers import NonNegative as NonNegative
    from fedzero.model.numbers import Positive as Positive
    from fedzero.model.numbers import ProperFraction as ProperFraction
    from fedzero.model.params import Params as Params
    from fedzero.model.schedules import Cosine as Cosine
    from fedzero.model.schedules import Counts as Counts
    from fedzero.model.schedules import Exponential as Exponential
    from fedzero.model.schedules import OneCycle as OneCycle
    from fedzero.model.schedules import Piecewise as Piecewise
    from fedzero.model.schedules import Schedule as Schedule
    from fedzero.model.schedules import Warmup as Warmup
    from fedzero.model.schedules import count_at as count_at
    from fedzero.model.schedules import rate_at as rate_at
    from fedzero.model.schedules import reaches_zero as reaches_zero
    from fedzero.model.updates import Dense as Dense
    from fedzero.model.updates import Group as Group
    from fedzero.model.updates import OneRound as OneRound
    from fedzero.model.updates import Seeded as Seeded
    from fedzero.model.updates import Stepped as Stepped
    from fedzero.model.updates import Update as Update
    from fedzero.model.updates import of_one_round as of_one_round
    from fedzero.model.updates import pack as pack
    from fedzero.model.updates import unpack as unpack
    from fedzero.oracles import ALL_DATA as ALL_DATA
    from fedzero.oracles import Answer as Answer
    from fedzero.oracles import Ask as Ask
    from fedzero.oracles import Basis as Basis
    from fedzero.oracles import Gradient as Gradient
    from fedzero.oracles import Losses as Losses

_PLACES: dict[str, tuple[str, ...]] = {
    "fedzero.directions": ("Distribution", "Domain", "Keys", "Program", "SHARED", "Stream", "Terms"),
    "fedzero.directions.terms": ("F32", "F64", "U64"),
    "fedzero.errors": ("FedzeroError",),
    "fedzero.estimators.spsa": ("Difference", "direction_keys", "points_of", "probes", "queries_of", "slopes"),
    "fedzero.estimators.subspace": ("coordinates", "orthonormal"),
    "fedzero.links": ("Coder",),
    "fedzero.links.coders": ("Bits", "Doubles"),
    "fedzero.methods.contract": (
        "Contribution",
        "EVERYTHING",
        "Federation",
        "Form",
        "StepInputs",
        "Memory",
        "MAX_ABS_COORDINATE",
        "Method",
        "Numbers",
        "Part",
        "RuleState",
        "Scale",
        "Intermediate",
        "IntermediateResult",
        "State",
        "Turn",
        "Vectors",
        "Cost",
        "Traits",
        "Work",
        "advance_round",
    ),
    "fedzero.methods.rules.arithmetic": ("power", "root"),
    "fedzero.methods.rules.chain": ("ChainState", "KernelState"),
    "fedzero.methods.rules.contract": ("At", "Fact", "KernelRule", "Rule", "RuleTraits", "Step", "average", "joined"),
    "fedzero.methods.rules.kernels": ("Adam", "Moments", "Momentum", "Optimizer", "Sgd", "Sign", "dense_step"),
    "fedzero.methods.shared.corrections": (
        "Constant",
        "Gamma",
        "Inverse",
        "control_variate",
        "proximal",
        "transferred",
    ),
    "fedzero.methods.shared.graphs": ("Complete", "Graph"),
    "fedzero.methods.shared.local_steps": (
        "Box",
        "LastTurns",
        "LocalSteps",
        "OwnDirections",
        "add_within",
        "advanced",
        "difference_of",
        "estimate",
        "mean_walk",
        "refuse_empty",
        "run_local_steps",
        "scalars_of_all",
        "shares_of",
        "vector_of",
        "walk",
        "walk_terms",
    ),
    "fedzero.methods.shared.seeded": ("Samples", "SeededMethod", "sample_of"),
    "fedzero.model.numbers": ("NonNegative", "Positive", "ProperFraction"),
    "fedzero.model.params": ("Params",),
    "fedzero.model.schedules": (
        "Cosine",
        "Counts",
        "Exponential",
        "OneCycle",
        "Piecewise",
        "Schedule",
        "Warmup",
        "count_at",
        "rate_at",
        "reaches_zero",
    ),
    "fedzero.model.updates": (
        "Dense",
        "Group",
        "OneRound",
        "Seeded",
        "Stepped",
        "Update",
        "of_one_round",
        "pack",
        "unpack",
    ),
    "fedzero.oracles": ("ALL_DATA", "Answer", "Ask", "Basis", "Gradient", "Losses"),
    "fedzero.methods.baffle": ("Baffle",),
    "fedzero.methods.decomfl": ("DeComFL",),
    "fedzero.methods.dzopa": ("Dzopa",),
    "fedzero.methods.fedavg": ("FedAvg",),
    "fedzero.methods.fedkseed": ("FedKSeed",),
    "fedzero.methods.fedkseedpro": ("FedKSeedPro",),
    "fedzero.methods.fedprox": ("FedProxZO",),
    "fedzero.methods.fedzo": ("FedZO",),
    "fedzero.methods.feedsign": ("FeedSign",),
    "fedzero.methods.fzoos": ("FZooS",),
    "fedzero.methods.hiso": ("HiSo",),
    "fedzero.methods.mezo": ("MeZO",),
    "fedzero.methods.responsesurface": ("ResponseSurface",),
    "fedzero.methods.scaffold": ("ScaffoldZO",),
    "fedzero.methods.zoadafl": ("ZOAdaFL",),
    "fedzero.methods.zofedht": ("ZOFedHT",),
    "fedzero.methods.zones": ("ZoneS",),
}
_PUBLIC = {name: place for place, names in _PLACES.items() for name in names}
__all__ = [*sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
