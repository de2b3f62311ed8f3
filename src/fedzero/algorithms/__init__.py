"""One paper, one file. A recipe's `[algorithm]` table is decoded straight into one of these."""

from fedzero.algorithms.baffle import Baffle
from fedzero.algorithms.contract import Federation, Method
from fedzero.algorithms.decomfl import DeComFL
from fedzero.algorithms.dzopa import Dzopa
from fedzero.algorithms.fedavg import FedAvg
from fedzero.algorithms.fedkseed import FedKSeed
from fedzero.algorithms.fedkseedpro import FedKSeedPro
from fedzero.algorithms.fedprox import FedProxZO
from fedzero.algorithms.fedzo import FedZO
from fedzero.algorithms.feedsign import FeedSign
from fedzero.algorithms.fzoos import FZooS
from fedzero.algorithms.hiso import HiSo
from fedzero.algorithms.mezo import MeZO
from fedzero.algorithms.responsesurface import ResponseSurface
from fedzero.algorithms.scaffold import ScaffoldZO
from fedzero.algorithms.zoadafl import ZOAdaFL
from fedzero.algorithms.zofedht import ZOFedHT
from fedzero.algorithms.zones import ZoneS

__all__ = [
    "Baffle",
    "DeComFL",
    "Dzopa",
    "FZooS",
    "FedAvg",
    "FedKSeed",
    "FedKSeedPro",
    "FedProxZO",
    "FedZO",
    "Federation",
    "FeedSign",
    "HiSo",
    "MeZO",
    "Method",
    "ResponseSurface",
    "ScaffoldZO",
    "ZOAdaFL",
    "ZOFedHT",
    "ZoneS",
]
