"""Graphs over the clients of a federation, for methods without a server."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from fedzero.errors import FedzeroError
from fedzero.model.value import Checked

Node = Annotated[int, Meta(ge=0)]


class Complete(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="complete"):
    """All clients are neighbours of each other."""

    def neighbours(self, node: int, nodes: int) -> tuple[int, ...]:
        return tuple(other for other in range(nodes) if other != node)

    def check(self, nodes: int) -> None:
        """Always connected."""


class Ring(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ring"):
    """Two neighbours each."""

    def neighbours(self, node: int, nodes: int) -> tuple[int, ...]:
        return tuple(sorted({(node - 1) % nodes, (node + 1) % nodes} - {node}))

    def check(self, nodes: int) -> None:
        """Always connected."""


class Edges(Checked, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="edges"):
    """Undirected edges between clients."""

    pairs: Annotated[tuple[tuple[Node, Node], ...], Meta(max_length=100_000)]
    """[a, b]: an edge between clients a and b, numbered from 0"""

    def neighbours(self, node: int, nodes: int) -> tuple[int, ...]:
        return tuple(sorted({a + b - node for a, b in self.pairs if node in (a, b) and a != b}))

    def check(self, nodes: int) -> None:
        for pair in self.pairs:
            if max(pair) >= nodes or pair[0] == pair[1]:
                raise FedzeroError(
                    f"algorithm.graph.pairs has {list(pair)}: give pairs of two different clients from 0 to {nodes - 1}"
                )
        reached, border = {0}, [0]
        while border:
            fresh = set(self.neighbours(border.pop(), nodes)) - reached
            reached |= fresh
            border += fresh
        if len(reached) < nodes:
            lost = min(set(range(nodes)) - reached)
            raise FedzeroError(
                f"algorithm.graph is not connected: client {lost} cannot be reached from client 0; add an edge "
                "between their components"
            )


Graph = Complete | Ring | Edges
