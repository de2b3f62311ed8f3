"""Gradient surrogates: a Gaussian process over past queries instead of finite differences (the FZooS paper)."""

from fedzero.estimators.surrogate.features import FeatureHistory, Features, features_of, weights_of
from fedzero.estimators.surrogate.history import History, SurrogateCache
from fedzero.estimators.surrogate.kernels import Kernel, Matern, Rbf
from fedzero.estimators.surrogate.process import (
    Everything,
    GradientSurrogate,
    Nearest,
    Rebuild,
    Recent,
    Scaling,
    Window,
)
from fedzero.estimators.surrogate.settings import Active, Surrogate, Transfer

__all__ = [
    "Active",
    "Everything",
    "FeatureHistory",
    "Features",
    "GradientSurrogate",
    "History",
    "Kernel",
    "Matern",
    "Nearest",
    "Rbf",
    "Rebuild",
    "Recent",
    "Scaling",
    "Surrogate",
    "SurrogateCache",
    "Transfer",
    "Window",
    "features_of",
    "weights_of",
]
