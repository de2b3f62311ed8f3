"""One paper, one file. A recipe's `[algorithm]` table is decoded straight into one of these."""

from fedzero.methods.baffle import Baffle
from fedzero.methods.contract import Federation, Method
from fedzero.methods.decomfl import DeComFL
from fedzero.methods.dzopa import Dzopa
from fedzero.methods.fedavg import FedAvg
from fedzero.methods.fedkseed import FedKSeed
from fedzero.methods.fedkseedpro import FedKSeedPro
from fedzero.methods.fedprox import FedProxZO
from fedzero.methods.fedzo import FedZO
from fedzero.methods.feedsign import FeedSign
from fedzero.methods.fzoos import FZooS
from fedzero.methods.hiso import HiSo
from fedzero.methods.mezo import MeZO
from fedzero.methods.responsesurface import ResponseSurface
from fedzero.methods.scaffold import ScaffoldZO
from fedzero.methods.zoadafl import ZOAdaFL
from fedzero.methods.zofedht import ZOFedHT
from fedzero.methods.zones import ZoneS

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
