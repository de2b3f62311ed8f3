"""Keys and sealed boxes, from the library `cryptography`: X25519 (RFC 7748), HKDF with SHA-256 (RFC 5869),
ChaCha20-Poly1305 (RFC 8439). Nothing here is of our own making but the order in which they are called.

    agreed(private, public)     the secret that two hosts share
    derived(secret, what)       a key for one purpose
    seal, unseal                a message that one key opens, with a header that is sent beside it in clear
    stream(key, count)          so many pseudo-random bytes of a key that is used for nothing else
"""

from __future__ import annotations

import os
from typing import Any

from fedzero.errors import FedzeroError, Refused

WIDTH = 32
"""Bytes of a key."""
TAG = 16
"""Bytes by which a sealed message is longer."""
_ONCE = bytes(12)
"""The nonce: every key seals one message."""


def _library() -> Any:
    try:
        from cryptography.hazmat import primitives
        from cryptography.hazmat.primitives import ciphers, hashes, serialization  # noqa: F401 - loads them
        from cryptography.hazmat.primitives.asymmetric import x25519  # noqa: F401
        from cryptography.hazmat.primitives.ciphers import aead, algorithms  # noqa: F401
        from cryptography.hazmat.primitives.kdf import hkdf  # noqa: F401
    except ImportError:
        raise FedzeroError("a secure sum needs the library `cryptography`: pip install 'fedzero[secure]'") from None
    return primitives


def expect_library() -> None:
    _library()


def fresh() -> bytes:
    """A new private key."""
    return os.urandom(WIDTH)


def public_of(private: bytes) -> bytes:
    found: bytes = _private(private).public_key().public_bytes_raw()
    return found


def _private(private: bytes) -> Any:
    return _library().asymmetric.x25519.X25519PrivateKey.from_private_bytes(private)


def agreed(private: bytes, public: bytes) -> bytes:
    """X25519(private, public); keys of small order, with which everybody would agree on zero, are refused."""
    try:
        other = _library().asymmetric.x25519.X25519PublicKey.from_public_bytes(public)
        found: bytes = _private(private).exchange(other)
    except ValueError:
        raise Refused("a public key is not one") from None
    return found


def derived(secret: bytes, what: bytes, salt: bytes = b"") -> bytes:
    primitives = _library()
    hkdf = primitives.kdf.hkdf.HKDF(primitives.hashes.SHA256(), WIDTH, salt, what)
    found: bytes = hkdf.derive(secret)
    return found


def seal(key: bytes, plain: bytes, header: bytes) -> bytes:
    found: bytes = _library().ciphers.aead.ChaCha20Poly1305(key).encrypt(_ONCE, plain, header)
    return found


def unseal(key: bytes, sealed: bytes, header: bytes) -> bytes:
    aead = _library().ciphers.aead.ChaCha20Poly1305(key)
    try:
        found: bytes = aead.decrypt(_ONCE, sealed, header)
    except Exception as error:  # InvalidTag has no message
        raise Refused("does not open") from error
    return found


def stream(key: bytes, count: int) -> bytes:
    ciphers = _library().ciphers
    found: bytes = ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(count))
    return found
