import copy
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from fednews.errors import FednewsError
from fednews.tracking.model import load_model, log_model
from fednews.tracking.store import connect, experiment_id

from .small import Small, Trained, batches, trainer


def assert_equal_state(one: nn.Module, two: nn.Module) -> None:
    a, b = one.state_dict(), two.state_dict()
    assert list(a) == list(b)
    assert all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_a_model_comes_back_with_equal_weights_in_evaluation_mode(client, start):
    module = Small()
    before = copy.deepcopy(module.state_dict())
    with start() as run:
        log_model(client, run.run_id, module, step=5)
    loaded = load_model(client, run.run_id)
    assert type(loaded) is Small
    assert_equal_state(loaded, module)
    assert not any(part.training for part in loaded.modules())
    assert all(part.training for part in module.modules())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_the_model_belongs_to_its_run_and_states_its_requirements(client, start):
    with start() as run:
        model_id = log_model(client, run.run_id, Small(), metadata={"commit": "abc"})
    logged = client.get_logged_model(model_id)
    assert logged.source_run_id == run.run_id
    assert logged.experiment_id == experiment_id(client, "trial")
    assert str(logged.status) == "READY"
    assert [output.model_id for output in client.get_run(run.run_id).outputs.model_outputs] == [model_id]
    folder = Path(logged.artifact_location)
    requirements = (folder / "requirements.txt").read_text().split()
    assert f"torch=={torch.__version__}" in requirements
    assert not any(line.startswith("fednews") for line in requirements)
    assert "commit: abc" in (folder / "MLmodel").read_text()


def test_the_latest_model_of_a_run_is_loaded(client, start):
    with start() as run:
        for size in (2, 3):
            log_model(client, run.run_id, Small(size))
            time.sleep(0.01)
    assert load_model(client, run.run_id).body[0].embedding_dim == 3


def test_a_trained_lightning_module_does_not_take_its_trainer_along(client, start):
    module = Trained()
    trainer(False).fit(module, batches())
    with start() as run:
        log_model(client, run.run_id, module)
    loaded = load_model(client, run.run_id)
    assert_equal_state(loaded, module)
    assert loaded._trainer is None


def test_a_large_model_is_saved_in_seconds_without_a_warning(client, start, caplog):
    module = nn.Sequential(nn.Embedding(30_000, 300), Small())
    with start() as run:
        begin = time.monotonic()
        log_model(client, run.run_id, module)
        assert time.monotonic() - begin < 10
    assert not caplog.records
    assert_equal_state(load_model(client, run.run_id), module)


def test_a_class_that_cannot_be_imported_again_is_refused(client, start):
    class Local(Small):
        pass

    with start() as run:
        with pytest.raises(FednewsError, match="Local"):
            log_model(client, run.run_id, nn.Sequential(Local()))
        assert client.get_run(run.run_id).outputs.model_outputs == []


def test_a_run_without_a_model_is_a_clear_error(client, start):
    with start() as run:
        pass
    with pytest.raises(FednewsError, match="no model"):
        load_model(client, run.run_id)


def test_a_model_goes_to_an_mlflow_server_as_well(server):
    client = connect(server)
    run = client.create_run(experiment_id(client, "remote"))
    module = Small()
    log_model(client, run.info.run_id, module)
    assert_equal_state(load_model(client, run.info.run_id), module)
