"""Which words belong to which entity, and the entities' vectors."""

import gzip
import json

import numpy as np
import pytest

from fednews.data.entities import entity_names, load_entity_vectors, title_entities
from fednews.data.features import NewsInfo, news_features
from fednews.data.mind import MindReader
from fednews.data.store import write_store
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.data.text import tokenize
from fednews.errors import UsageError
from fednews.streams import Streams


def entity(name: str, *mentions: tuple[int, str]) -> dict:
    offsets, forms = [m[0] for m in mentions], [m[1] for m in mentions]
    return {"Label": name, "Type": "X", "WikidataId": name, "OccurrenceOffsets": offsets, "SurfaceForms": forms}


@pytest.fixture
def store_of(rows_store):
    """A store of titles with the given entity columns; a first article without entities lets one be clicked."""

    def make(*titles: tuple[str, object]):
        texts = [(title, text if isinstance(text, str) else json.dumps(text)) for title, text in titles]
        rows = [NewsRow("N0", "c", "s", "nothing here")]
        rows += [NewsRow(f"N{i}", "c", "s", title, "", column) for i, (title, column) in enumerate(texts, 1)]
        return rows_store({"train": (rows, [BehaviorRow("U1", 0, [], ["N0", "N1"], [0, 1])])})

    return make


def named(store, row: int, length: int = 12) -> list[tuple[str, str]]:
    """Every word of a title with the name of its entity."""
    names = entity_names(store)
    words = tokenize(store.news.title[row])[:length]
    return [(word, names[e]) for word, e in zip(words, title_entities(store, length)[row], strict=False)]


def test_every_word_of_a_mention_gets_its_entity_and_no_other_word(store_of):
    entities = [entity("Q30", (13, "U.S.")), entity("Q22686", (0, "Trump"), (30, "Trump"))]
    store = store_of(("Trump leaves U.S. delegation; Trump's aides stay", entities))
    assert entity_names(store) == ["", "Q22686", "Q30"]
    assert named(store, 1) == [
        ("trump", "Q22686"),
        ("leaves", ""),
        *((part, "Q30") for part in ("u", ".", "s", ".")),
        ("delegation", ""),
        (";", ""),
        ("trump", "Q22686"),
        ("s", ""),
        ("aides", ""),
        ("stay", ""),
    ]
    assert not title_entities(store, 12)[0].any()


def test_the_entities_are_padded_and_cut_with_the_title(store_of):
    store = store_of(("Trump meets Trump", [entity("Q1", (0, "Trump"), (12, "Trump"))]))
    assert title_entities(store, 5)[1].tolist() == [1, 0, 1, 0, 0]
    assert title_entities(store, 2)[1].tolist() == [1, 0]


def test_lower_casing_that_lengthens_a_title_shifts_nothing(store_of):
    title = "İzmir, İĞDIR, İNEGÖL: EU acts"
    assert len(title.lower()) == len(title) + 3
    store = store_of((title, [entity("Q458", (22, "EU"))]))
    assert [word for word, name in named(store, 1, 20) if name == "Q458"] == ["eu"]


def test_the_longest_of_overlapping_mentions_wins_in_any_order(store_of):
    city, team = entity("Q60", (0, "New York")), entity("Q190618", (0, "New York Giants"))
    store = store_of(("New York Giants", [city, team]), ("New York Giants", [team, city]))
    for row in (1, 2):
        assert {name for _, name in named(store, row)} == {"Q190618"}


@pytest.mark.parametrize(
    "column",
    [
        "",
        "[]",
        "not json",
        "{}",
        "[3]",
        '[{"WikidataId": "Q1"}]',
        '[{"WikidataId": "Q1", "OccurrenceOffsets": 3, "SurfaceForms": "Trump"}]',
        '[{"WikidataId": null, "OccurrenceOffsets": [0], "SurfaceForms": ["Trump"]}]',
        '[{"WikidataId": "Q1", "OccurrenceOffsets": [null, -5, 400, 0.0], "SurfaceForms": ["a", "b", "c", "Trump"]}]',
        '[{"WikidataId": "Q1", "OccurrenceOffsets": [0], "SurfaceForms": [""]}]',
        '[{"WikidataId": "Q1", "OccurrenceOffsets": [1], "SurfaceForms": ["Trump"]}]',
    ],
)
def test_a_malformed_or_misplaced_entity_is_none(store_of, column):
    store = store_of(("Trump leaves", column), ("Obama leaves", [entity("Q76", (0, "Obama"))]))
    assert entity_names(store) == ["", "Q76"]
    assert not title_entities(store, 4)[1].any()
    assert title_entities(store, 4)[2].tolist() == [1, 0, 0, 0]


def test_the_json_of_a_store_is_parsed_once(store_of, monkeypatch):
    store = store_of(("Trump leaves", [entity("Q1", (0, "Trump"))]))
    first = entity_names(store)
    monkeypatch.setattr("fednews.data.entities.json", None)
    assert entity_names(store) == first
    assert title_entities(store, 3)[1].tolist() == [1, 0, 0]


def test_vectors_come_from_several_files_and_are_zero_where_none_has_one(tmp_path):
    (tmp_path / "a.vec").write_text("Q1\t1.0\t2\t\nQ9\t9\t9\t\n")
    with gzip.open(tmp_path / "b.vec.gz", "wt") as file:
        file.write("Q2\t3\t4\t\nQ1\t8\t8\t\n")
    vectors = load_entity_vectors([str(tmp_path / "a.vec"), str(tmp_path / "b.vec.gz")], ["", "Q1", "Q2", "Q3"])
    assert vectors.tolist() == [[0, 0], [1, 2], [3, 4], [0, 0]]


def test_vectors_that_cannot_be_used_are_an_error_for_the_user(tmp_path):
    narrow, wide = tmp_path / "narrow.vec", tmp_path / "wide.vec"
    narrow.write_text("Q1\t1\t\n")
    wide.write_text("Q2\t1\t2\t\n")
    with pytest.raises(UsageError, match=r"no entity vectors at .*absent"):
        load_entity_vectors([str(tmp_path / "absent.vec")], ["", "Q1"])
    with pytest.raises(UsageError, match=r"none of the 1 entities .*narrow"):
        load_entity_vectors([str(narrow)], ["", "Q3"])
    with pytest.raises(UsageError, match="none of the 0 entities"):
        load_entity_vectors([str(narrow)], [""])
    with pytest.raises(UsageError, match="different widths"):
        load_entity_vectors([str(narrow), str(wide)], ["", "Q1", "Q2"])


def test_minds_own_entities_and_vectors(real_data, tmp_path):
    """Every mention of the sample's real titles covers the words of its surface form, and no other."""
    folder = tmp_path / "train"
    folder.mkdir()
    source = gzip.decompress((real_data / "mind-sample" / "news_full_columns.tsv.gz").read_bytes()).decode()
    (folder / "news.tsv").write_text(source)
    first, second = (line.split("\t")[0] for line in source.splitlines()[:2])
    (folder / "behaviors.tsv").write_text(f"1\tU1\t11/11/2019 9:05:58 AM\t\t{first}-1 {second}-0\n")
    store = write_store(MindReader(tmp_path), tmp_path / "store")

    names = entity_names(store)
    ids = title_entities(store, 60)
    mentioned = 0
    for row, column in enumerate(store.news.title_entities):
        words = [(names[e], word) for e, word in zip(ids[row], tokenize(store.news.title[row]), strict=False) if e]
        entities = json.loads(column)
        mentioned += len(entities)
        for e in entities:
            expected = sorted(word for form in e["SurfaceForms"] for word in tokenize(form))
            found = sorted(word for name, word in words if name == e["WikidataId"])
            # A form may end within a word ("Galaxy S" in "Galaxy S11"): the word's start decides.
            assert all(word.startswith(part) for word, part in zip(found, expected, strict=True)), (found, expected)
        assert {name for name, _ in words} <= {e["WikidataId"] for e in entities}
    assert mentioned > 2000

    vectors = str(real_data / "mind-sample" / "entity_embedding_50.vec")
    info = NewsInfo.of(store, None, Streams(0), (vectors,))
    known = info.entity_vectors.abs().sum(1) > 0
    assert info.entities == len(names) == len(info.entity_vectors)
    assert not known[0]
    assert 0 < known.sum() <= 50
    features = news_features(store, ("title", "title_entities"), 30, 50)
    assert ((features["title_entities"] == 0) | (features["title"] != 0)).all(), "no entity stands at padding"
    np.testing.assert_array_equal(features["title_entities"], ids[:, :30])
