"""Signatures: Ed25519, and P-256 for browsers without it. `cryptography` is imported here alone, and so is `nacl`
(libsodium), which takes half of the time for Ed25519 (docs/results/devices.md) and may be missing.

Ed25519   keys of 32 bytes, signatures of 64 (RFC 8032)
P-256     ECDSA with SHA-256; keys of 65 bytes, an uncompressed point; signatures r ‖ s, 32 bytes each, big-endian
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fedzero.errors import FedzeroError
from fedzero.privacy.statement import small_order

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError as error:
    raise FedzeroError("devices need the extra: pip install 'fedzero[devices]'") from error
try:
    from nacl import bindings as sodium
    from nacl.exceptions import BadSignatureError
except ImportError:
    sodium = None  # type: ignore[assignment]

ED25519, P256 = 1, 2
LENGTHS = {ED25519: 32, P256: 65}
"""Bytes of a public key, by algorithm."""
FINGERPRINT = 16
_ECDSA = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True)
class GatewayKeys:
    """The secrets of a gateway: one key of each algorithm, 32 bytes each. A device verifies the signatures of the one
    that it has itself."""

    ed25519: bytes
    p256: bytes

    @staticmethod
    def made() -> GatewayKeys:
        p256 = ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value.to_bytes(32, "big")
        return GatewayKeys(Ed25519PrivateKey.generate().private_bytes_raw(), p256)


class Signer:
    """Signs for a gateway."""

    def __init__(self, keys: GatewayKeys):
        self._ed25519 = Ed25519PrivateKey.from_private_bytes(keys.ed25519)
        self._sodium = keys.ed25519 + self._ed25519.public_key().public_bytes_raw()
        self._p256 = ec.derive_private_key(int.from_bytes(keys.p256, "big"), ec.SECP256R1())
        point = self._p256.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        self.public = {ED25519: self._ed25519.public_key().public_bytes_raw(), P256: point}

    @property
    def fingerprint(self) -> bytes:
        """The first 16 bytes of SHA-256 over both public keys."""
        return hashlib.sha256(self.public[ED25519] + self.public[P256]).digest()[:FINGERPRINT]

    def sign(self, algorithm: int, message: bytes) -> bytes:
        if algorithm == ED25519:
            if sodium is None:
                return self._ed25519.sign(message)
            return bytes(sodium.crypto_sign(message, self._sodium)[:64])
        r, s = utils.decode_dss_signature(self._p256.sign(message, _ECDSA))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


class Verifier:
    """Verifies signatures of one public key; raises `ValueError` if it is no key."""

    def __init__(self, algorithm: int, key: bytes):
        if len(key) != LENGTHS.get(algorithm):
            raise ValueError(f"a key of {len(key)} bytes")
        self._raw = key
        self._key: Ed25519PublicKey | ec.EllipticCurvePublicKey
        if algorithm == ED25519:
            if small_order(key):
                raise ValueError("a point of small order")
            self._key = Ed25519PublicKey.from_public_bytes(key)
        else:
            self._key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), key)

    def __call__(self, message: bytes, signature: bytes) -> bool:
        try:
            if isinstance(self._key, Ed25519PublicKey):
                if sodium is not None:
                    return _opened(message, signature, self._raw)
                self._key.verify(signature, message)
            else:
                r, s = (int.from_bytes(half, "big") for half in (signature[:32], signature[32:]))
                self._key.verify(utils.encode_dss_signature(r, s), message, _ECDSA)
        except InvalidSignature:
            return False
        return True


def _opened(message: bytes, signature: bytes, key: bytes) -> bool:
    try:
        sodium.crypto_sign_open(signature + message, key)
    except BadSignatureError:
        return False
    return True
