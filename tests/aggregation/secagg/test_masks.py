import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fednews.aggregation.secagg.masks import add_mask, commitment, pair_mask_key, self_mask_key, subtract_mask

KEY = bytes(range(16))


@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u4", "<u8"])
@pytest.mark.parametrize("length", [1, 7, 70_000])
def test_the_mask_is_the_keystream_of_aes_in_counter_mode(dtype: str, length: int):
    values = np.random.default_rng(0).integers(0, 200, length).astype(dtype)
    masked = values.copy()
    add_mask(masked, KEY)
    stream = Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(values.nbytes))
    np.testing.assert_array_equal(masked - values, np.frombuffer(stream, dtype))
    subtract_mask(masked, KEY)
    np.testing.assert_array_equal(masked, values)


def test_keys_of_different_purposes_and_executions_are_different():
    secret, transcripts = bytes(16), (bytes(32), bytes(31) + b"\x01")
    keys = [derive(secret, transcript) for derive in (pair_mask_key, self_mask_key) for transcript in transcripts]
    assert len({*keys, commitment(secret)[:16], commitment(secret)[16:], secret}) == 7
