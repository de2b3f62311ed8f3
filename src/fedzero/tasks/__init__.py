"""Tasks: what is optimised, on whose data. A recipe's `[task]` table is decoded straight into one of these."""

from fedzero.tasks.binary import Binary
from fedzero.tasks.classify import Fashion, Mnist
from fedzero.tasks.contract import Place, Problem
from fedzero.tasks.quadratic import Quadratic
from fedzero.tasks.synthetic import Synthetic

__all__ = ["AnyTask", "Binary", "Fashion", "Mnist", "Place", "Problem", "Quadratic", "Synthetic"]

AnyTask = Mnist | Fashion | Binary | Quadratic | Synthetic
