"""Masks: keystreams read as ring elements (the PRG of Bonawitz et al. 2017, section 3.4, is AES in counter mode)."""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fednews.aggregation.secagg.keys import derive

_KEY_BYTES = 16

# In pieces that stay in the cache; measured 1.1 ms per million 32-bit elements against 1.4 ms in one piece.
_PIECE = 1 << 18
_ZEROS = memoryview(bytes(_PIECE))
_BLOCK = 16


def pair_mask_key(agreed: bytes, transcript: bytes) -> bytes:
    """Key of the mask that two peers share, from what their mask keys agree on."""
    return derive(agreed, b"pair mask", transcript, _KEY_BYTES)


def self_mask_key(seed: bytes, transcript: bytes) -> bytes:
    """Key of a client's own mask."""
    return derive(seed, b"self mask", transcript, _KEY_BYTES)


def commitment(seed: bytes) -> bytes:
    """What shows the server, once it has opened ``seed``, that the shares were right; it does not give it away."""
    return derive(seed, b"commitment")


def add_mask(values: np.ndarray, key: bytes) -> None:
    """Add the mask of ``key`` (16 bytes, used for one mask only) to ring elements ``[n]``, in place."""
    _combine(np.add, values, key)


def subtract_mask(values: np.ndarray, key: bytes) -> None:
    """Undo `add_mask`."""
    _combine(np.subtract, values, key)


def _combine(operation: np.ufunc, values: np.ndarray, key: bytes) -> None:
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()
    buffer = np.empty(_PIECE + _BLOCK, np.uint8)
    mask, step = buffer[:_PIECE].view(values.dtype), _PIECE // values.itemsize
    for start in range(0, len(values), step):
        piece = values[start : start + step]
        stream.update_into(_ZEROS[: piece.nbytes], buffer)
        operation(piece, mask[: len(piece)], out=piece)
