"""Key agreement, key derivation, authenticated encryption and signatures, all from ``cryptography``."""

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fednews.aggregation.secagg.errors import MessageRefused

SEED_BYTES = 16
PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64
TAG_BYTES = 16

_NAME = b"fednews secagg 1 "
_NONCE = bytes(12)


class KeyPair:
    """An X25519 key pair that a seed determines, so that sharing the seed shares the key.

    Args:
        seed: random bytes, at least 16.
    """

    def __init__(self, seed: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(derive(seed, b"x25519"))
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret shared with the holder of ``public``'s private key; to be used through `derive` only.

        Raises:
            MessageRefused: ``public`` is no usable public key.
        """
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise MessageRefused("a public key is unusable: with it the secret would be known to everybody") from error


def derive(secret: bytes, purpose: bytes, context: bytes = b"", length: int = 32) -> bytes:
    """A key of ``length`` bytes for one purpose (HKDF-SHA256); ``context`` must have a fixed length per purpose."""
    return HKDF(hashes.SHA256(), length, None, _NAME + purpose + context).derive(secret)


def seal(secret: bytes, head: bytes, context: bytes, body: bytes | memoryview) -> bytes:
    """Encrypt ``body`` so that it opens with this secret, head and context only (AES-256-GCM).

    The key is derived from the head, so a secret may seal one body per head and the nonce need not vary.
    """
    return AESGCM(derive(secret, b"seal", head)).encrypt(_NONCE, body, head + context)


def unseal(secret: bytes, head: bytes, context: bytes, box: bytes | memoryview) -> bytes:
    """Open what `seal` made.

    Raises:
        MessageRefused: it was made with something else, or changed since.
    """
    try:
        return AESGCM(derive(secret, b"seal", head)).decrypt(_NONCE, box, head + context)
    except InvalidTag as error:
        raise MessageRefused("a message was tampered with, replayed, or sealed with another key") from error


def sign(identity: Ed25519PrivateKey, statement: bytes) -> bytes:
    """An Ed25519 signature (64 bytes)."""
    return identity.sign(_NAME + statement)


def check_signature(identity: bytes, statement: bytes, signature: bytes) -> None:
    """Check an Ed25519 signature.

    Raises:
        MessageRefused: the holder of ``identity`` did not sign ``statement``.
    """
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, _NAME + statement)
    except (InvalidSignature, ValueError) as error:
        raise MessageRefused("a signature does not belong to what is said to be signed") from error
