"""A BERT of two thin layers with a tokenizer for the synthetic titles, as folders that ``transformers`` loads."""

import atexit
import shutil
import string
import tempfile
from functools import cache

from fednews.data.words import COMMON, TOPICS


@cache
def tiny_bert() -> str:
    """A folder with a configuration and a tokenizer, without weights: the same for the whole process."""
    from transformers import BertConfig, BertTokenizer

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    words = {word for topic in TOPICS for word in (*topic.category_words, *topic.words)} | set(COMMON)
    letters = string.ascii_lowercase + string.digits
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *sorted(words - set(letters))]
    BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
    BertConfig(
        vocab_size=len(pieces),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
    ).save_pretrained(folder)
    return folder
