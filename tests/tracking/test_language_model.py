import copy

import torch

from fednews.data.features import NewsInfo
from fednews.models.plm_nr import PLMNR
from fednews.tracking.model import load_model, log_model
from tests.models.tiny_bert import tiny_bert


def test_a_model_with_parts_of_transformers_comes_back_and_computes_the_same(client, start):
    model = PLMNR(
        NewsInfo(2, 1, 1),
        tiny_bert(),
        pretrained=False,
        heads=2,
        head_dim=5,
        freeze_layers=0,
        gradient_checkpointing=True,
    )
    twin = copy.deepcopy(model).eval()
    with start() as run:
        log_model(client, run.run_id, model)
    loaded = load_model(client, run.run_id)
    assert type(loaded) is PLMNR
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]
    pieces = torch.tensor([[3, 60, 80, 4], [3, 90, 4, 0]])
    assert torch.equal(loaded.news(pieces), twin.news(pieces))
