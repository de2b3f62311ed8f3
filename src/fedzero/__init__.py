"""fedzero: federated optimization with zero gradients and near-zero communication.

    fedzero.train(model, clients=…, loss=…)        any module, data and loss
    fedzero.finetune(model, tokenizer, …)          language models of transformers, on rows with a prompt
    fedzero.images("photos", size=32)              a folder of images as a pair of tensors
    fedzero.run("demo", out=…)                     a recipe: packaged, a file, or a table
    fedzero.estimate(fedzero.train, …)             seconds, bytes and memory of a call, by two rounds of it
    fedzero.RunOptions(out=…, rounds=…)            keywords that these share
    fedzero.sweep("demo", {…}, seeds=…, out=…)     several seeds and settings: a run for each, means over seeds
    fedzero.tune("demo", {…}, out=…)               a search over several fields: short runs, or an optuna study
    fedzero.Callback, Stop, Pause                  observe a run, end it, pause it; EarlyStopping, Target, Budget do
    fedzero.Run.open(folder)                       a run: history, summary, replay, verify, report, patch, resume
    fedzero.Privacy(epsilon=2)                     differential privacy of a run
    fedzero.minimise(functions, bounds=…)          black boxes of several parties, minimised together
    fedzero.Integer(1, 10), Choice("a", "b")       bounds of coordinates that are no real numbers
    fedzero.Optimiser(bounds=…, out=…)             ask and tell, for loops of your own in any number of processes
    fedzero.Method, SeededMethod, Task             bases of methods and tasks of your own
    fedzero.Link, Shaper, Coder, Mixer, Combiner   bases of links (filters) of your own
    fedzero.Rule                                   base of rules of your own: what becomes of a round's scalars
    fedzero.register(kind)                         make one known to this process; distributions use entry points
    fedzero.DeComFL, FedZO, FZooS, …               every method that is installed, by the name of its class

Names are imported when they are first used: torch and numba take seconds. `dir(fedzero)` has them all, those of other
distributions too, and imports none.
"""

from __future__ import annotations

import sys
from importlib import import_module

# `typing` is not imported: `python -m fedzero` takes the current folder off the path after this module only.
TYPE_CHECKING = False
if TYPE_CHECKING:  # for type checkers and editors; `X as X` is how they know that a name is for others
    from typing import Any

    from fedzero.api.ask_tell import Optimiser as Optimiser
    from fedzero.api.coordinates import Choice as Choice
    from fedzero.api.coordinates import Integer as Integer
    from fedzero.api.estimate import estimate as estimate
    from fedzero.api.finetune import finetune as finetune
    from fedzero.api.images import images as images
    from fedzero.api.minimise import minimise as minimise
    from fedzero.api.options import RunOptions as RunOptions
    from fedzero.api.runs import Run as Run
    from fedzero.api.runs import run as run
    from fedzero.api.stopping import Budget as Budget
    from fedzero.api.stopping import EarlyStopping as EarlyStopping
    from fedzero.api.stopping import Target as Target
    from fedzero.api.sweeping import sweep as sweep
    from fedzero.api.train import site_task as site_task
    from fedzero.api.train import train as train
    from fedzero.api.tuning import tune as tune
    from fedzero.callbacks import Callback as Callback
    from fedzero.callbacks import Pause as Pause
    from fedzero.callbacks import Stop as Stop
    from fedzero.errors import FedzeroError as FedzeroError
    from fedzero.ledger.store import Tampered as Tampered
    from fedzero.links.contract import Coder as Coder
    from fedzero.links.contract import Combiner as Combiner
    from fedzero.links.contract import Link as Link
    from fedzero.links.contract import Mixer as Mixer
    from fedzero.links.contract import Shaper as Shaper
    from fedzero.links.gathering import Gathering as Gathering
    from fedzero.methods import Baffle as Baffle
    from fedzero.methods import DeComFL as DeComFL
    from fedzero.methods import Dzopa as Dzopa
    from fedzero.methods import FedAvg as FedAvg
    from fedzero.methods import FedKSeed as FedKSeed
    from fedzero.methods import FedKSeedPro as FedKSeedPro
    from fedzero.methods import FedProxZO as FedProxZO
    from fedzero.methods import FedZO as FedZO
    from fedzero.methods import FeedSign as FeedSign
    from fedzero.methods import FZooS as FZooS
    from fedzero.methods import HiSo as HiSo
    from fedzero.methods import MeZO as MeZO
    from fedzero.methods import ResponseSurface as ResponseSurface
    from fedzero.methods import ScaffoldZO as ScaffoldZO
    from fedzero.methods import ZOAdaFL as ZOAdaFL
    from fedzero.methods import ZOFedHT as ZOFedHT
    from fedzero.methods import ZoneS as ZoneS
    from fedzero.methods.contract import Federation as Federation
    from fedzero.methods.contract import Method as Method
    from fedzero.methods.rules.contract import Rule as Rule
    from fedzero.methods.shared.seeded import SeededMethod as SeededMethod
    from fedzero.oracles.criteria import accuracy as accuracy
    from fedzero.plugins import register as register
    from fedzero.recipe.privacy import Privacy as Privacy
    from fedzero.tasks.contract import BuildContext as BuildContext
    from fedzero.tasks.contract import Problem as Problem
    from fedzero.tasks.contract import Task as Task

__version__ = "0.2.1"

_PUBLIC = {
    "train": "fedzero.api.train",
    "finetune": "fedzero.api.finetune",
    "images": "fedzero.api.images",
    "estimate": "fedzero.api.estimate",
    "site_task": "fedzero.api.train",
    "accuracy": "fedzero.oracles.criteria",
    "run": "fedzero.api.runs",
    "Run": "fedzero.api.runs",
    "Privacy": "fedzero.recipe.privacy",
    "RunOptions": "fedzero.api.options",
    "Callback": "fedzero.callbacks",
    "Stop": "fedzero.callbacks",
    "Pause": "fedzero.callbacks",
    "EarlyStopping": "fedzero.api.stopping",
    "Target": "fedzero.api.stopping",
    "Budget": "fedzero.api.stopping",
    "minimise": "fedzero.api.minimise",
    "Integer": "fedzero.api.coordinates",
    "Choice": "fedzero.api.coordinates",
    "Optimiser": "fedzero.api.ask_tell",
    "sweep": "fedzero.api.sweeping",
    "tune": "fedzero.api.tuning",
    "register": "fedzero.plugins",
    "FedzeroError": "fedzero.errors",
    "Tampered": "fedzero.ledger.store",
    "Method": "fedzero.methods.contract",
    "Federation": "fedzero.methods.contract",
    "SeededMethod": "fedzero.methods.shared.seeded",
    "Rule": "fedzero.methods.rules.contract",
    "Task": "fedzero.tasks.contract",
    "Problem": "fedzero.tasks.contract",
    "BuildContext": "fedzero.tasks.contract",
    "Link": "fedzero.links.contract",
    "Gathering": "fedzero.links.gathering",
    "Shaper": "fedzero.links.contract",
    "Coder": "fedzero.links.contract",
    "Mixer": "fedzero.links.contract",
    "Combiner": "fedzero.links.contract",
    **dict.fromkeys(
        (
            "Baffle",
            "DeComFL",
            "Dzopa",
            "FZooS",
            "FedAvg",
            "FedKSeed",
            "FedKSeedPro",
            "FedProxZO",
            "FedZO",
            "FeedSign",
            "HiSo",
            "MeZO",
            "ResponseSurface",
            "ScaffoldZO",
            "ZOAdaFL",
            "ZOFedHT",
            "ZoneS",
        ),
        "fedzero.methods",
    ),
}
__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name[:1].isupper():
        for kind in import_module("fedzero.plugins").kinds("methods").values():
            if kind.type.__name__ == name:
                return kind.type
    raise AttributeError(f"module 'fedzero' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*__all__, *_methods_of_others()})


def _methods_of_others() -> set[str]:
    """Names of classes: entry points of distributions have them, so none is imported."""
    from importlib import metadata  # takes longer than all else here

    found = {entry.attr for entry in metadata.entry_points(group="fedzero.methods")}
    if (plugins := sys.modules.get("fedzero.plugins")) is not None:  # else nothing is registered
        found |= {kind.type.__name__ for kind in plugins.kinds("methods").values()}
    return found
