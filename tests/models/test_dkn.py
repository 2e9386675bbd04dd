"""DKN against plain loops, and its entities."""

import pytest
import torch

from fednews.data.features import NewsInfo
from fednews.models.dkn import DKN
from fednews.models.encoders.news.knowledge import MaxConvolution, entity_embedding
from tests.models.entity_cases import assert_reads_entities

SMALL = {"word_dim": 6, "entity_dim": 4, "filters": 3, "windows": (1, 2, 4), "attention_dim": 5, "score_dim": 5}


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(8, 0), 0))


def test_max_convolution_is_the_largest_feature_of_all_windows():
    """Every window in a plain loop, for texts longer than, as long as and shorter than the window, and empty."""
    convolution = MaxConvolution(2, 3, (1, 3))
    x, lengths = torch.randn(4, 5, 2), [5, 3, 1, 0]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    pooled = convolution(x, mask)
    for row, length in enumerate(lengths):
        text = torch.cat([x[row, :length], torch.zeros(2, 2)])
        expected = []
        for window, conv in zip((1, 3), convolution.convs, strict=True):
            features = [conv(text[i : i + window].flatten()).relu() for i in range(length)]
            expected.append(torch.stack(features).amax(0) if features else torch.zeros(3))
        torch.testing.assert_close(pooled[row], torch.cat(expected))


def test_an_entity_is_a_channel_aligned_with_its_word():
    """KCNN of words and entities is a convolution over [w_i, tanh(M e_i + b)]."""
    model = DKN(NewsInfo(9, 1, 1, entities=5), **SMALL).eval()
    title, entities = torch.tensor([[3, 4, 5, 0]]), torch.tensor([[2, 0, 4, 0]])
    kcnn = model.news
    words = kcnn.words.weight[title[0, :3]]
    known = kcnn.entities.weight[entities[0, :3]]
    transformed = torch.tanh(known @ kcnn.transform.weight.T + kcnn.transform.bias)
    expected = kcnn.convolution(torch.cat([words, transformed], 1)[None], torch.ones(1, 3, dtype=torch.bool))
    torch.testing.assert_close(model.encode_news({"title": title, "title_entities": entities}), expected)


def test_the_score_is_the_two_networks_of_the_paper_in_a_plain_loop():
    model = DKN(NewsInfo(9, 1, 1), **SMALL).eval()
    clicks, candidates = torch.randn(1, 4, 9), torch.randn(1, 3, 9)
    mask = torch.tensor([[False, True, True, True]])
    scores = model.score(model.encode_user(clicks, mask, torch.zeros(1, dtype=torch.long)), candidates)[0]
    attention, network = model.attention, model.network
    weight = torch.cat([attention.click.weight, attention.candidate.weight], dim=1)
    for place, candidate in enumerate(candidates[0]):
        pairs = [torch.cat([click, candidate]) for click in clicks[0, 1:]]
        logits = torch.stack([attention.output((weight @ pair + attention.click.bias).relu()) for pair in pairs])
        user = (logits.softmax(0) * clicks[0, 1:]).sum(0)
        torch.testing.assert_close(scores[place], network(torch.cat([user, candidate]))[0])


def test_the_authors_products_take_the_place_of_both_networks():
    model = DKN(NewsInfo(9, 1, 1), **SMALL, scoring="product").eval()
    clicks, candidates = torch.randn(1, 4, 9), torch.randn(1, 3, 9)
    mask = torch.tensor([[False, True, True, True]])
    scores = model.score(model.encode_user(clicks, mask, torch.zeros(1, dtype=torch.long)), candidates)[0]
    for place, candidate in enumerate(candidates[0]):
        user = (clicks[0, 1:] @ candidate).softmax(0) @ clicks[0, 1:]
        torch.testing.assert_close(scores[place], user @ candidate)


def test_it_reads_entities(synthetic_store, streams, cohort):
    assert_reads_entities(lambda info: DKN(info, **SMALL), synthetic_store, streams, cohort)


def test_graph_vectors_stay_frozen_and_an_entity_without_one_counts_as_none():
    vectors = torch.tensor([[9.0, 9.0], [1.0, 2.0], [0.0, 0.0]])
    model = DKN(NewsInfo(9, 1, 1, entities=3, entity_vectors=vectors), **SMALL).eval()
    assert not model.news.entities.weight.requires_grad
    title = torch.tensor([[3, 4]])
    none, known, unknown = (
        model.encode_news({"title": title, "title_entities": torch.tensor([[entity, 0]])}) for entity in (0, 1, 2)
    )
    assert torch.equal(none, unknown)
    assert not torch.allclose(none, known)


def test_data_without_entities_has_no_entity_channel():
    assert entity_embedding(NewsInfo(9, 1, 1), 4) is None
    names = {name for name, _ in DKN(NewsInfo(9, 1, 1), **SMALL).named_parameters()}
    assert not any("entities" in name or "transform" in name for name in names)


def test_kcnn_has_the_papers_number_of_filters():
    """100 filters of widths 1, 2, 3, 4 over two channels of 100 dimensions."""
    model = DKN(NewsInfo(9, 1, 1, entities=5), word_dim=100, entity_dim=100)
    filters = sum(p.numel() for p in model.news.convolution.parameters())
    assert filters == 100 * 2 * 100 * (1 + 2 + 3 + 4) + 4 * 100
    assert sum(p.numel() for p in model.news.transform.parameters()) == 100 * 100 + 100
