"""Tasks: what is optimised, on whose data. A recipe's `[task]` table is decoded straight into one of these."""

from fedzero.tasks.binary import Binary
from fedzero.tasks.blackbox import BlackBox
from fedzero.tasks.classify import Fashion, Mnist
from fedzero.tasks.contract import Place, Problem
from fedzero.tasks.image_attack import ImageAttack
from fedzero.tasks.language import Language
from fedzero.tasks.metric import MetricTuning
from fedzero.tasks.quadratic import Quadratic
from fedzero.tasks.synthetic import Synthetic
from fedzero.tasks.universal_attack import UniversalAttack

__all__ = [
    "AnyTask",
    "Binary",
    "BlackBox",
    "Fashion",
    "ImageAttack",
    "Language",
    "MetricTuning",
    "Mnist",
    "Place",
    "Problem",
    "Quadratic",
    "Synthetic",
    "UniversalAttack",
]

AnyTask = (
    Mnist
    | Fashion
    | Language
    | Binary
    | BlackBox
    | Quadratic
    | Synthetic
    | UniversalAttack
    | ImageAttack
    | MetricTuning
)
