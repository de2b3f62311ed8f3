"""Tasks: what is optimised, on whose data. A recipe's `[task]` table is decoded straight into one of these."""

from fedzero.tasks.blackbox import BlackBox
from fedzero.tasks.classify import Fashion, Mnist
from fedzero.tasks.contract import BuildContext, Problem, Task
from fedzero.tasks.language import Language
from fedzero.tasks.quadratic import Quadratic

__all__ = ["BlackBox", "BuildContext", "Fashion", "Language", "Mnist", "Problem", "Quadratic", "Task"]
