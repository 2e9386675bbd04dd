"""Aggregation under Paillier encryption (Paillier 1999), with the library that FINDING-HE names (``phe``).

Keys, roles and what the server sees: `fednews.aggregation.encrypted`. The secret key is the factors of the modulus,
which only `PaillierKeyHolder` has; ``public`` is the modulus. A ciphertext has twice the modulus' bits whatever it
holds, and costs the same, so each carries as many numbers as fit: fields of
sign + log2(bound) + fraction_bits + log2(max_clients) bits. Two encryptions of one value differ (fresh random r^n).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from fednews.aggregation.encrypted import Encrypted
from fednews.aggregation.fixed_point import FixedPoint, Packing
from fednews.errors import FednewsError, UsageError

if TYPE_CHECKING:
    import phe


class PaillierKeyHolder:
    """Makes the key pair and opens sums.

    Args:
        key_bits: bits of the modulus.
        packing: how numbers lie in a plaintext.
        threads: decryptions at a time.
    """

    def __init__(self, key_bits: int, packing: Packing, threads: int) -> None:
        public, self._secret = _phe().generate_paillier_keypair(n_length=key_bits)
        self.public = public.n.to_bytes(key_bits // 8, "big")
        self._packing, self._threads = packing, threads

    def open(self, total: list[bytes], n: int) -> np.ndarray:
        key = self._secret
        return self._packing.unpack(
            _in_threads(lambda c: key.decrypt(_number(key.public_key, c)), total, self._threads), n
        )


class PaillierClient:
    """Packs and encrypts with the public key.

    Args:
        public: the modulus.
        packing: how numbers lie in a plaintext.
        threads: encryptions at a time.
    """

    def __init__(self, public: bytes, packing: Packing, threads: int) -> None:
        self._key, self._size = _public_key(public), 2 * len(public)
        self._packing, self._threads = packing, threads

    def encrypt(self, values: np.ndarray) -> list[bytes]:
        return _in_threads(self._encrypt, self._packing.pack(values), self._threads)

    def _encrypt(self, packed: int) -> bytes:
        return self._key.encrypt(packed).ciphertext().to_bytes(self._size, "big")


class PaillierServer:
    """Multiplies ciphertexts, which adds what they hold.

    Args:
        public: the modulus.
        max_clients: how many uploads the fields have room for.
    """

    def __init__(self, public: bytes, max_clients: int) -> None:
        self.clients = 0
        self._key, self._size = _public_key(public), 2 * len(public)
        self._max_clients = max_clients
        self._sums: list[phe.EncryptedNumber] = []

    def add(self, upload: list[bytes]) -> None:
        """Add one client's upload.

        Raises:
            FednewsError: the sum would run over.
        """
        self.clients += 1
        if self.clients > self._max_clients:
            raise FednewsError(
                f"more than max_clients={self._max_clients} clients in one encrypted sum, their fields would run over: "
                "set the aggregation's max_clients to the largest number of clients that are summed"
            )
        numbers = [_number(self._key, ciphertext) for ciphertext in upload]
        self._sums = [a + b for a, b in zip(self._sums, numbers, strict=True)] if self._sums else numbers

    def total(self) -> list[bytes]:
        # Products of ciphertexts need no fresh randomness: only the key holder, who may know the sum, receives them.
        return [total.ciphertext(be_secure=False).to_bytes(self._size, "big") for total in self._sums]


class Paillier(Encrypted):
    """Sums of fixed-point numbers under Paillier encryption; exact sums of what the clients rounded.

    Args:
        key_bits: bits of the modulus; 2048 is 112-bit security, less is for tests only.
        fraction_bits: bits behind the point of a weighted update's elements.
        bound: largest magnitude of an element of a client's weighted update.
        max_clients: largest number of clients in one sum (FINDING clusters all clients in one).
        threads: encryptions at a time on this machine; None: one per core.

    Raises:
        UsageError: no number fits into a plaintext, or a sum of numbers not into 63 bits, or ``phe`` is not installed.
    """

    def __init__(
        self,
        key_bits: int = 2048,
        fraction_bits: int = 24,
        bound: float = 256.0,
        max_clients: int = 256,
        threads: int | None = None,
    ) -> None:
        _phe()
        super().__init__(FixedPoint(fraction_bits, bound))
        self.key_bits, self.max_clients, self.threads = key_bits, max_clients, threads or os.cpu_count() or 1
        # One bit for the sign; phe takes magnitudes below a third of the modulus, which has its top bit set.
        width = (self.fixed.limit * max_clients).bit_length() + 1
        slots = (key_bits - 2) // width
        if width > 63:
            raise UsageError(
                f"Paillier with fraction_bits={fraction_bits}, bound={bound:g} and max_clients={max_clients} needs "
                f"{width} bits per number and 63 are possible: lower one of them"
            )
        if slots < 1 or key_bits % 16 or max_clients < 1:
            raise UsageError(
                f"Paillier with key_bits={key_bits} and max_clients={max_clients}: key_bits must be a multiple of 16 "
                f"and at least {width + 2}, max_clients at least 1"
            )
        self.packing = Packing(width, slots)

    def make_key_holder(self) -> PaillierKeyHolder:
        return PaillierKeyHolder(self.key_bits, self.packing, self.threads)

    def make_client(self, public: bytes) -> PaillierClient:
        return PaillierClient(public, self.packing, self.threads)

    def make_server(self, public: bytes) -> PaillierServer:
        return PaillierServer(public, self.max_clients)


def _phe() -> ModuleType:
    """Import the optional library when it is needed; without gmpy2 it would silently be many times slower."""
    try:
        import gmpy2  # noqa: F401
        import phe
    except ImportError as error:
        raise UsageError("Paillier aggregation needs phe and gmpy2: pip install 'fednews[encryption]'") from error
    return phe


def _public_key(public: bytes) -> "phe.PaillierPublicKey":
    return _phe().PaillierPublicKey(int.from_bytes(public, "big"))


def _number(key: "phe.PaillierPublicKey", ciphertext: bytes) -> "phe.EncryptedNumber":
    return _phe().EncryptedNumber(key, int.from_bytes(ciphertext, "big"))


def _in_threads(function: Callable, items: list, threads: int) -> list:
    """Map in threads: gmpy2 lets go of the interpreter lock while it takes powers."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
