"""Compiled models against themselves."""

import pytest
import torch
from torch._dynamo.utils import counters

from fednews.federated.clients import client_gradients, fused_gradient
from fednews.models.compiled import compile_encoders


@pytest.fixture
def cohort(cohorts):
    return cohorts.cohort(cohorts.of_clients(cohorts.draw_clients(4, 0), 0))


def check_equal_results(model, cohort, backend: str) -> None:
    names = list(model.state_dict())
    with torch.random.fork_rng():
        eager = fused_gradient(model, cohort, "sum")
    torch.compiler.reset()
    counters.clear()
    compile_encoders(model, backend)
    assert list(model.state_dict()) == names
    with torch.random.fork_rng():
        list(client_gradients(model, cohort, "sum", 4))
    assert not counters["frames"], "clients' own gradients are not compiled, and keep nothing else from it"
    compiled = fused_gradient(model, cohort, "sum")
    assert counters["frames"]["ok"] > 0, "something was compiled"
    torch.testing.assert_close(compiled.loss, eager.loss)
    torch.testing.assert_close(compiled.updates, eager.updates, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make_model", ["naml", "nrms", "private_nrms"], indirect=True)
def test_a_traced_model_gives_equal_losses_and_gradients(make_model, cohort):
    """Traced and differentiated, but run by eager kernels: the C++ compiler takes a minute for a model."""
    check_equal_results(make_model(train_words=True), cohort, "aot_eager")


@pytest.mark.parametrize("make_model", ["nrms"], indirect=True)
def test_compiled_code_gives_equal_losses_and_gradients(make_model, cohort):
    check_equal_results(make_model(), cohort, "inductor")
