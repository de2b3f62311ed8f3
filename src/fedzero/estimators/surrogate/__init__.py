"""Gradient surrogates: a Gaussian process over past queries instead of finite differences (the FZooS paper)."""

from fedzero.estimators.surrogate.features import FeatureHistory, Features, features_of, weights_of
from fedzero.estimators.surrogate.history import History, SurrogateCache
from fedzero.estimators.surrogate.kernels import Matern, Rbf
from fedzero.estimators.surrogate.process import Everything, GradientSurrogate, Nearest, Recent, Window
from fedzero.estimators.surrogate.settings import Active, Surrogate, Transfer

__all__ = [
    "Active",
    "Everything",
    "FeatureHistory",
    "Features",
    "GradientSurrogate",
    "History",
    "Matern",
    "Nearest",
    "Rbf",
    "Recent",
    "Surrogate",
    "SurrogateCache",
    "Transfer",
    "Window",
    "features_of",
    "weights_of",
]
