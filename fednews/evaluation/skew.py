"""How far noise moves a ranking: the skew level (Liu et al. 2022, version 1, section 4.4.1)."""

import numpy as np


def skew_levels(clean: np.ndarray, noisy: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """``tau = 1 - accuracy(R, R~)`` of every impression, float64 ``[impressions]``, NaN where nothing was shown.

    The paper leaves "accuracy" of two ranked lists open; it is taken as classification accuracy of what stands at each
    rank: the share of ranks at which both rankings have the same candidate. 0 where nothing moved; a random order of n
    candidates has 1 - 1/n on average. Equal scores keep the candidates' order in both rankings.

    Args:
        clean: scores without noise, float ``[rows]``, higher is better.
        noisy: scores with noise, aligned with ``clean``.
        offsets: int ``[impressions + 1]``, where each impression's rows begin.
    """
    sizes = np.diff(offsets)
    impression = np.repeat(np.arange(len(sizes)), sizes)
    same = np.lexsort((-clean, impression)) == np.lexsort((-noisy, impression))
    agreeing = np.bincount(impression, same, len(sizes))
    return np.where(sizes > 0, 1 - agreeing / np.maximum(sizes, 1), np.nan)
