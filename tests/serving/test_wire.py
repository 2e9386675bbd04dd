from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save

from fednews.errors import FednewsError
from fednews.privacy.private_attention import PrivateAttention
from fednews.serving.service import ModelFiles
from fednews.serving.wire import pack, unpack
from tests.models.tiny_bert import tiny_bert

from .conftest import BASIS, serve

BASES = {
    "nrms": ("fednews.models.nrms.NRMS", {"word_dim": 12, "heads": 2, "head_dim": 5, "query_dim": 7}),
    "naml": ("fednews.models.naml.NAML", {"word_dim": 12, "filters": 10, "category_dim": 4, "query_dim": 7}),
    "plm_nr": (
        "fednews.models.plm_nr.PLMNR",
        {
            "language_model": tiny_bert(),
            "pretrained": False,
            "freeze_layers": 1,
            "heads": 2,
            "head_dim": 5,
            "query_dim": 7,
        },
    ),
}
MECHANISM = PrivateAttention(padding=0.4, theta=0.9, basis=BASIS)


def config_of(name: str) -> dict:
    path, settings = BASES[name]
    base = {"class_path": path, "init_args": settings}
    return {"class_path": "fednews.models.private.PrivateRecModel", "init_args": {"basis": BASIS, "base": base}}


def packed(served, name: str) -> ModelFiles:
    made = pack("run", config_of(name), served.model, served.store.news.id, served.vectors, MECHANISM, 20)
    return replace(made, description={**made.description, "k_max": 50})


@pytest.fixture
def files(served) -> ModelFiles:
    return packed(served, "nrms")


@pytest.mark.parametrize("name", sorted(BASES))
def test_a_device_rebuilds_the_models_users_exactly(synthetic_store, streams, name):
    served = serve(name, synthetic_store, streams)
    deployed = unpack(packed(served, name))
    assert (deployed.padding, deployed.theta, deployed.history_length, deployed.k_max) == (0.4, 0.9, 20, 50)
    assert torch.equal(deployed.model.basis, served.model.basis.detach())
    assert torch.equal(deployed.model.anonymous, served.device.anonymous)
    for batch in served.impressions():
        shown = (served.vectors[batch.history], batch.history_mask, batch.user)
        with torch.no_grad():
            assert torch.equal(deployed.model.interests(*shown), served.model.interests(*shown))


def test_a_device_gets_every_news_vector_by_id(served, files):
    deployed = unpack(files)
    assert len(deployed.vectors) == len(served.store.news)
    for row, name in enumerate(served.store.news.id):
        assert torch.equal(deployed.vectors[name], served.vectors[row])


def test_the_weights_are_the_users_side_alone(served, files):
    sent = set(load(files.weights))
    assert "basis" in sent
    assert not sent & served.model.news_parameters()
    assert sent | served.model.news_parameters() == {name for name, _ in served.model.named_parameters()}


@pytest.mark.parametrize("where", ["outer", "inner"])
def test_a_service_cannot_make_a_device_build_foreign_classes(files, where):
    foreign = {"class_path": "subprocess.Popen", "init_args": {"args": "true"}}
    config = config_of("nrms")
    if where == "inner":
        config["init_args"]["base"] = foreign
    else:
        config = foreign
    with pytest.raises(FednewsError, match=r"the class subprocess\.Popen"):
        unpack(replace(files, description={**files.description, "model": config}))


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("weights", b""),
        ("weights", b"\x80\x04pickle"),
        ("weights", save({"basis": torch.zeros(3, 3)})),
        ("catalogue", b"\xff" * 100),
        ("catalogue", save({"vectors": torch.zeros(2, 2)})),
        ("description", {}),
        ("description", {"model": {"class_path": "fednews.models.nrms.NoSuch"}}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_files_that_are_not_a_model_are_a_clear_error(files, part, content):
    if isinstance(content, dict):
        content = {**files.description, **content} if content else {}
    with pytest.raises(FednewsError, match="cannot be read"):
        unpack(replace(files, **{part: content}))
