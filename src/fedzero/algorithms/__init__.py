"""One paper, one file. A recipe's `[algorithm]` table is decoded straight into one of these."""

from fedzero.algorithms.contract import Algorithm, Contribution, State, Turn
from fedzero.algorithms.decomfl import DeComFL
from fedzero.algorithms.fedavg import FedAvg
from fedzero.algorithms.fedzo import FedZO
from fedzero.algorithms.mezo import MeZO

AnyAlgorithm = DeComFL | MeZO | FedZO | FedAvg

__all__ = ["Algorithm", "AnyAlgorithm", "Contribution", "DeComFL", "FedAvg", "FedZO", "MeZO", "State", "Turn"]
