"""Cohorts whose titles mention entities, for models that read them; the synthetic data has none."""

from dataclasses import replace

import torch

from fednews.aggregation.plain import plain_sum
from fednews.data.features import NewsInfo
from fednews.federated.clients import client_gradients, fused_gradient, trainable
from fednews.models.base import click_losses

ENTITIES = 7


def with_entities(cohort):
    """The cohort with an entity, or none, at every title word."""
    title = cohort.news["title"]
    entities = (title * 31 + torch.arange(title.shape[1])) % ENTITIES
    return replace(cohort, news={**cohort.news, "title_entities": torch.where(title != 0, entities, 0)})


def entity_info(store, streams, vectors: torch.Tensor | None = None) -> NewsInfo:
    return replace(NewsInfo.of(store, None, streams), entities=ENTITIES, entity_vectors=vectors)


def scores(model, cohort) -> torch.Tensor:
    return model(
        cohort.news, cohort.history, cohort.history_mask, cohort.user, cohort.sample_history, cohort.candidates
    )


def assert_reads_entities(make, store, streams, cohort) -> None:
    """Trained or frozen, in one pass or client by client, padded or not; every parameter with a place."""
    torch.manual_seed(3)
    vectors = torch.randn(ENTITIES, 4)
    for given in (None, vectors):
        model = make(entity_info(store, streams, given)).eval()
        assert model.layer_of()
        plain, named = scores(model, cohort), scores(model, with_entities(cohort))
        assert not torch.allclose(plain, named)

        pad = torch.nn.functional.pad
        news = {name: pad(c, (0, 5)) if c.ndim == 2 else c for name, c in with_entities(cohort).news.items()}
        torch.testing.assert_close(scores(model, replace(cohort, news=news)), named, rtol=1e-5, atol=1e-6)

        click_losses(named).sum().backward()
        touched = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert touched == set(trainable(model))
        assert all(model.get_parameter(name).grad.abs().sum() > 0 for name in touched)

        together = plain_sum([fused_gradient(model, with_entities(cohort), "sum")], trainable(model)).mean()
        apart = plain_sum(client_gradients(model, with_entities(cohort), "sum", 4), trainable(model)).mean()
        for name, update in together.items():
            torch.testing.assert_close(apart[name], update, rtol=1e-4, atol=1e-6)
