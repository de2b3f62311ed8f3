"""fedzero: federated optimization with zero gradients and near-zero communication."""

from __future__ import annotations

__version__ = "0.1.0"
