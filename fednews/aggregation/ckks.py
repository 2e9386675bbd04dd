"""Aggregation under CKKS (Cheon et al. 2017) by TenSEAL: 4,096 numbers to a ciphertext, lattice-based and fast.

Keys, roles and what the server sees: `fednews.aggregation.encrypted`. ``public`` is a serialised context with the
parameters and the public key; only `CKKSKeyHolder` has a context with the secret key.

CKKS is approximate: decryption returns the message plus the ciphertext's noise, and a server that sees both the
encrypted and the opened sum can compute the secret key from that noise (Li and Micciancio 2021). So clients encrypt
multiples of a step, and the key holder rounds what it opens to a multiple of the step: the noise, far smaller than the
step, is gone (exact CKKS, Bossuat et al. 2024), and the result is exactly the sum of what the clients rounded. Zeros
stay zeros, which matters under Adam, where small noise moves a parameter that has no gradient.

Parameters: ring dimension 8192 with primes of 60, 40 and 60 bits (160 bits in all; 218 are allowed at 128-bit
security). Nothing is ever multiplied, so that a scale of 2^60 fits into the first two primes with 40 bits to spare for
the sum; a scale of 2^40, usual where multiplications follow, has noise of half a step of 2^-24 with 20 clients.
"""

from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from fednews.aggregation.encrypted import Encrypted
from fednews.aggregation.fixed_point import FixedPoint
from fednews.errors import FednewsError, UsageError

if TYPE_CHECKING:
    import tenseal

RING = 8192
SLOTS = RING // 2
PRIMES = (60, 40, 60)
SCALE = 2.0**60

_EXACT = 2.0**48  # float64 arithmetic inside CKKS keeps integers up to this size well within a quarter


class CKKSKeyHolder:
    """Makes the keys and opens sums.

    Args:
        fixed: the step to which sums are rounded.
    """

    def __init__(self, fixed: FixedPoint) -> None:
        self._fixed = fixed
        scheme = _tenseal().SCHEME_TYPE.CKKS
        self._context = _tenseal().context(scheme, RING, coeff_mod_bit_sizes=list(PRIMES), n_threads=1)
        self._context.global_scale = SCALE
        public = self._context.copy()
        public.make_context_public()
        self.public = public.serialize(save_galois_keys=False, save_relin_keys=False)

    def open(self, total: list[bytes], n: int) -> np.ndarray:
        """Decrypt and round to int64 ``[n]``.

        Raises:
            FednewsError: the sum is too large or too noisy to be rounded to what was encrypted.
        """
        values = np.concatenate([_tenseal().ckks_vector_from(self._context, data).decrypt() for data in total])
        scaled = np.ldexp(values[:n], self._fixed.fraction_bits)
        rounded = np.rint(scaled)
        if np.abs(scaled - rounded).max() > 0.25 or np.abs(rounded).max() > _EXACT:
            raise FednewsError(
                f"the encrypted sum reaches {np.abs(values[:n]).max():g}, too large for a step of "
                f"2^-{self._fixed.fraction_bits}: lower the aggregation's fraction_bits, or clip the updates"
            )
        return rounded.astype(np.int64)


class CKKSClient:
    """Encrypts with the public key.

    Args:
        public: serialised context with the public key.
        fixed: what the integers are multiples of.
    """

    def __init__(self, public: bytes, fixed: FixedPoint) -> None:
        self._context, self._fixed = _tenseal().context_from(public, n_threads=1), fixed

    def encrypt(self, values: np.ndarray) -> list[bytes]:
        chunks = [values[start : start + SLOTS] for start in range(0, len(values), SLOTS)]
        return [_tenseal().ckks_vector(self._context, self._fixed.decode(c).tolist()).serialize() for c in chunks]


class CKKSServer:
    """Adds ciphertexts.

    Args:
        public: serialised context without the secret key.
    """

    def __init__(self, public: bytes) -> None:
        self.clients = 0
        self._context = _tenseal().context_from(public, n_threads=1)
        self._sums: list[tenseal.CKKSVector] = []

    def add(self, upload: list[bytes]) -> None:
        self.clients += 1
        vectors = [_tenseal().ckks_vector_from(self._context, data) for data in upload]
        self._sums = [a.add_(b) for a, b in zip(self._sums, vectors, strict=True)] if self._sums else vectors

    def total(self) -> list[bytes]:
        return [total.serialize() for total in self._sums]


class CKKS(Encrypted):
    """Sums of fixed-point numbers under CKKS; exact sums of what the clients rounded.

    Args:
        fraction_bits: bits behind the point of a weighted update's elements.
        bound: largest magnitude of an element of a client's weighted update.

    Raises:
        UsageError: ``tenseal`` is not installed, or the encoding is impossible.
    """

    def __init__(self, fraction_bits: int = 24, bound: float = 1024.0) -> None:
        _tenseal()
        super().__init__(FixedPoint(fraction_bits, bound))

    def make_key_holder(self) -> CKKSKeyHolder:
        return CKKSKeyHolder(self.fixed)

    def make_client(self, public: bytes) -> CKKSClient:
        return CKKSClient(public, self.fixed)

    def make_server(self, public: bytes) -> CKKSServer:
        return CKKSServer(public)


def _tenseal() -> ModuleType:
    """Import the optional library when it is needed."""
    try:
        import tenseal
    except ImportError as error:
        raise UsageError("CKKS aggregation needs tenseal: pip install 'fednews[encryption]'") from error
    return tenseal
