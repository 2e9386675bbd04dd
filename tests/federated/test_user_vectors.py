import numpy as np
import pytest
import torch

from fednews.errors import UsageError
from fednews.federated import user_vectors as module
from fednews.federated.user_vectors import latest_impressions, reader_vectors, user_vectors
from fednews.models.dan import DAN
from fednews.models.dkn import DKN


def test_the_latest_impression_is_found_as_by_a_plain_loop(cohorts):
    samples, time = cohorts.samples, cohorts.train.time
    for client, found in enumerate(latest_impressions(cohorts)):
        own = samples.impression[samples.rows[client]]
        assert found == max(own, key=lambda row: (time[row], row))


def test_vectors_are_those_of_each_client_alone_whatever_the_batch(cohorts, make_model, monkeypatch):
    model = make_model(dropout=0.5)
    model.train()
    if isinstance(model, DAN | DKN):  # their users depend on the candidates
        with pytest.raises(UsageError, match="has no user vector"):
            list(user_vectors(model, cohorts))
        return
    found = torch.cat(list(user_vectors(model, cohorts)))
    assert model.training
    monkeypatch.setattr(module, "USERS_AT_ONCE", 7)
    parts = list(user_vectors(model, cohorts))
    assert [len(part) for part in parts[:-1]] == [7] * (len(parts) - 1)
    torch.testing.assert_close(torch.cat(parts), found, rtol=1e-4, atol=1e-5)

    model.eval()
    for client in range(0, cohorts.samples.clients, 9):
        row = latest_impressions(cohorts)[client]
        clicked = torch.from_numpy(cohorts.train.history[row][-cohorts.history_length :].astype(np.int64))
        news = model.encode_news({name: column[clicked] for name, column in cohorts.features.items()})
        mask = torch.ones(1, len(clicked), dtype=torch.bool)
        expected = model.encode_user(news[None], mask, torch.tensor([client + 1]))
        torch.testing.assert_close(found[client], expected[0].flatten().float(), rtol=1e-4, atol=1e-5)


def test_an_imagined_reader_clicked_one_article(cohorts, nrms):
    nrms.eval()
    found = reader_vectors(nrms, cohorts, np.array([3, 77]))
    for row, article in enumerate([3, 77]):
        news = nrms.encode_news({name: column[[article]] for name, column in cohorts.features.items()})
        expected = nrms.encode_user(news[None], torch.ones(1, 1, dtype=torch.bool), torch.tensor([0]))
        torch.testing.assert_close(found[row], expected[0])
