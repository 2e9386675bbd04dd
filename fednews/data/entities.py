"""Entities of news: which title word belongs to which knowledge-graph entity, and the entities' vectors."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fednews.data.store import Store
from fednews.data.text import read_vectors, tokenize
from fednews.errors import UsageError

_Mention = tuple[str, int, int]
_Mentions = dict[int, list[_Mention]]
_parsed: WeakKeyDictionary[Store, _Mentions] = WeakKeyDictionary()


def entity_names(store: Store) -> list[str]:
    """WikiData ids of the entities that the store's titles mention, sorted, behind an empty string at index 0."""
    return ["", *sorted({name for mentions in _mentions(store).values() for name, _, _ in mentions})]


def title_entities(store: Store, length: int) -> np.ndarray:
    """Which entity each of a title's first ``length`` words belongs to.

    A word belongs to the entity in whose mention it begins, to the longest mention where several overlap.

    Returns:
        int64 ``[news, length]``, indices into :func:`entity_names`, 0 for none; aligned with the words of
        :func:`fednews.data.text.tokenize`.
    """
    index = {name: row for row, name in enumerate(entity_names(store))}
    out = np.zeros((len(store.category), length), np.int64)
    for row, mentions in _mentions(store).items():
        title = store.news.title[row]
        owner = np.zeros(len(title), np.int64)
        for name, start, end in sorted(mentions, key=lambda mention: mention[2] - mention[1]):
            owner[start:end] = index[name]
        starts = [start for start, _ in zip(_word_starts(title), range(length), strict=False)]
        out[row, : len(starts)] = owner[starts]
    return out


def load_entity_vectors(paths: Sequence[str], names: Sequence[str]) -> Tensor:
    """Vectors of the named entities from MIND's ``entity_embedding.vec`` files, plain or gzipped.

    Args:
        paths: the files; where an entity stands in several, the first one counts.
        names: WikiData ids, as :func:`entity_names` gives them.

    Returns:
        float32 ``[len(names), d]``, zero where no file has a vector.

    Raises:
        UsageError: a missing or malformed file, files of different width, or no vector for any of the entities.
    """
    index = {name: row for row, name in enumerate(names) if name}
    found: dict[int, np.ndarray] = {}
    for path in map(Path, paths):
        if not path.is_file():
            raise UsageError(f"no entity vectors at {path}: data.entity_vectors names files like entity_embedding.vec")
        for name, vector in read_vectors(path):
            if name in index:
                found.setdefault(index[name], vector)
    files = ", ".join(map(str, paths))
    if not found:
        raise UsageError(f"none of the {len(index)} entities in this data set's titles has a vector in {files}")
    if len(widths := {len(vector) for vector in found.values()}) > 1:
        raise UsageError(f"the vectors in {files} have different widths: {sorted(widths)}; give files of one width")
    vectors = torch.zeros(len(names), widths.pop())
    vectors[list(found)] = torch.from_numpy(np.stack(list(found.values())))
    return vectors


def _mentions(store: Store) -> _Mentions:
    """Mentions ``(entity, start, end)`` by article, for those that have any; parsed once for each open store."""
    if store not in _parsed:
        # Most titles mention nothing: skip them by their length, that of "" or "[]", before any text is decoded.
        texts = store.news.title_entities
        rows = np.flatnonzero(texts.data.lengths() > len("[]"))
        found = ((int(row), list(_read_mentions(texts[row], store.news.title[row]))) for row in rows)
        _parsed[store] = {row: mentions for row, mentions in found if mentions}
    return _parsed[store]


def _read_mentions(text: str, title: str) -> Iterator[_Mention]:
    """What MIND's JSON says of a title, less what does not fit: readers have counted malformed columns already."""
    try:
        entities = json.loads(text)
    except json.JSONDecodeError:
        return
    for entity in entities if isinstance(entities, list) else ():
        if not isinstance(entity, dict):
            continue
        name, offsets, forms = (entity.get(key) for key in ("WikidataId", "OccurrenceOffsets", "SurfaceForms"))
        if not (name and isinstance(name, str) and isinstance(offsets, list) and isinstance(forms, list)):
            continue
        for start, form in zip(offsets, forms, strict=False):
            # A title that was changed after its entities were found must not give them to other words.
            if form and isinstance(form, str) and type(start) is int and start >= 0 and title.startswith(form, start):
                yield name, start, start + len(form)


def _word_starts(title: str) -> Iterator[int]:
    """Where in ``title`` each word begins; places are mapped back, as lower-casing lengthens a title with "İ"."""
    lowered = title.lower()
    place = range(len(title)) if len(lowered) == len(title) else [i for i, c in enumerate(title) for _ in c.lower()]
    end = 0
    for word in tokenize(title):
        start = lowered.index(word, end)
        end = start + len(word)
        yield place[start]
