"""One paper, one file. A recipe's `[algorithm]` table is decoded straight into one of these."""

from fedzero.algorithms.baffle import Baffle
from fedzero.algorithms.contract import Algorithm, Contribution, State, Turn
from fedzero.algorithms.decomfl import DeComFL
from fedzero.algorithms.dzopa import Dzopa
from fedzero.algorithms.fedavg import FedAvg
from fedzero.algorithms.fedprox import FedProxZO
from fedzero.algorithms.fedzo import FedZO
from fedzero.algorithms.fzoos import FZooS
from fedzero.algorithms.mezo import MeZO
from fedzero.algorithms.scaffold import ScaffoldZO
from fedzero.algorithms.zoadafl import ZOAdaFL
from fedzero.algorithms.zofedht import ZOFedHT
from fedzero.algorithms.zones import ZoneS

AnyAlgorithm = (
    DeComFL | MeZO | FedZO | ZOAdaFL | FZooS | ZOFedHT | FedProxZO | ScaffoldZO | Baffle | Dzopa | ZoneS | FedAvg
)

__all__ = [
    "Algorithm",
    "AnyAlgorithm",
    "Baffle",
    "Contribution",
    "DeComFL",
    "Dzopa",
    "FZooS",
    "FedAvg",
    "FedProxZO",
    "FedZO",
    "MeZO",
    "ScaffoldZO",
    "State",
    "Turn",
    "ZOAdaFL",
    "ZOFedHT",
    "ZoneS",
]
