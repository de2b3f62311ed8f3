"""The secret that the clients of a private run share, and the keys that follow from it."""

from __future__ import annotations

import hashlib

from fedzero.directions import Keys
from fedzero.directions.keys import fingerprint, fits, salt_of
from fedzero.errors import FedzeroError, Sendable
from fedzero.recipe import recipe as recipes
from fedzero.recipe.recipe import Recipe

SHORTEST_SECRET = 16
"""Bytes."""


def secret_of(key: bytes | None) -> bytes | None:
    """What a person gave as the clients' secret, as a key."""
    return hashlib.sha256(key).digest() if key is not None and len(key) > 64 else key


def keys_of(recipe: Recipe, secret: bytes | None, known: str | None = None, text: bytes | None = None) -> Keys:
    """The keys of a run. known: the fingerprint of the secret that it began with; text: the recipe as its ledger has
    it, if this one was changed."""
    if not recipe.federation.private:
        return Keys.of_seed(recipe.seed)
    if not secret:
        raise FedzeroError("federation.private = true needs the clients' secret: set FEDZERO_SECRET or --secret FILE")
    if known is not None:  # also by 0.1, with a short secret
        if not fits(secret, known):
            raise Sendable("the secret is not the one this run was started with")
        return Keys.of_seed(recipe.seed, secret, known)
    if len(secret) < SHORTEST_SECRET:
        raise FedzeroError(
            f"the clients' secret has {len(secret)} bytes, and who has the ledger can try all of those: "
            f"`fedzero secret FILE` makes one of random characters; at least {SHORTEST_SECRET} bytes are needed"
        )
    return Keys.of_seed(recipe.seed, secret, fingerprint(secret, salt_of(text or recipes.canonical(recipe))))
