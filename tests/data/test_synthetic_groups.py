"""Hidden groups of synthetic users, and the flags of `data synthesize`."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fednews.cli import _GENERATOR, main
from fednews.data.mind import MindReader
from fednews.data.ragged import Ragged
from fednews.data.synthetic import Truth, synthesize, user_groups
from fednews.data.synthetic_groups import Groups
from fednews.data.synthetic_model import BLOCK, Block, Catalogue, Settings, simulate
from fednews.data.words import TOPICS
from fednews.errors import UsageError
from fednews.evaluation.metrics import RankingSums
from fednews.streams import Streams

TOPIC_COUNT = len(TOPICS)
STRONG = Settings(4000, 3000, interest=3.0, drift=0.0, empty_history=0.0, history=80.0, groups=4, group_visibility=0.5)


@pytest.fixture(scope="module")
def strong() -> tuple[Catalogue, list[Block]]:
    catalogue = Catalogue(STRONG)
    return catalogue, list(simulate(STRONG, catalogue))


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _counts(catalogue: Catalogue, history: Ragged) -> np.ndarray:
    """Articles of each topic in each history, ``[users, topics]``."""
    reader = np.repeat(np.arange(len(history)), history.lengths())
    flat = np.bincount(reader * TOPIC_COUNT + catalogue.topic[history.values], minlength=len(history) * TOPIC_COUNT)
    return flat.reshape(-1, TOPIC_COUNT)


def test_one_group_gives_the_same_bytes_as_data_without_groups(tmp_path: Path) -> None:
    truth = synthesize(tmp_path / "plain", 300, 300)
    synthesize(tmp_path / "one", 300, 300, groups=1)
    assert _files(tmp_path / "plain") == _files(tmp_path / "one")
    assert user_groups(tmp_path / "one") is None
    assert "group" not in truth.summary()


def test_truth_of_data_that_uses_no_later_setting_is_written_as_in_the_first_version(tmp_path: Path) -> None:
    first = [field.name for field in dataclasses.fields(Settings)[:10]]
    synthesize(tmp_path / "a", 100, 300)
    synthesize(tmp_path / "b", 100, 300, history=30.0, groups=2)
    a, b = (json.loads((tmp_path / name / "truth.json").read_text())["settings"] for name in "ab")
    assert first[-1] == "empty_history"
    assert list(a) == first
    assert list(b) == [*first, "history", "groups"]
    assert Truth.read(tmp_path / "b").settings == Settings(100, 300, history=30.0, groups=2)


def test_groups_that_share_everything_change_no_click(tmp_path: Path) -> None:
    synthesize(tmp_path / "one", BLOCK + 50, 300)
    synthesize(tmp_path / "five", BLOCK + 50, 300, groups=5, group_strength=0.0, group_visibility=0.0)
    one, five = (_files(tmp_path / name) for name in ("one", "five"))
    assert five.keys() - one.keys() == {"groups.tsv"}
    assert all(one[name] == five[name] for name in one if name != "truth.json")


def test_the_group_of_every_user_is_on_disk(tmp_path: Path) -> None:
    settings = Settings(BLOCK + 500, 300, groups=3)
    truth = synthesize(tmp_path / "made" / "raw", settings.users, settings.news, groups=3)
    drawn = np.concatenate([block.group for block in simulate(settings, Catalogue(settings))])
    written = user_groups(tmp_path)
    assert written == {f"U{user}": group for user, group in enumerate(drawn.tolist(), 1)}
    reader = MindReader(tmp_path / "made" / "raw")
    assert {row.user for split in reader.splits for row in reader.behaviors(split)} == written.keys()
    spread = 4 * math.sqrt(settings.users * (1 / 3) * (2 / 3))
    assert np.bincount(drawn) == pytest.approx(np.full(3, settings.users / 3), abs=spread)
    assert "3 hidden groups" in truth.summary()


def test_a_damaged_list_of_groups_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "groups.tsv").write_text("U1\tnone\n")
    with pytest.raises(UsageError, match=r"groups\.tsv is damaged"):
        user_groups(tmp_path)


@pytest.mark.parametrize("groups", [1, 4, TOPIC_COUNT])
def test_any_two_groups_disagree_on_every_topic_and_the_first_clicks_what_it_reads(groups: int) -> None:
    source = Groups.draw(groups, 1.0, 0.4, 0.5, Streams(0)).source
    assert (source[0] == np.arange(TOPIC_COUNT)).all()
    assert (np.sort(source, axis=1) == np.arange(TOPIC_COUNT)).all()
    for a, b in itertools.combinations(source, 2):
        assert (a != b).all()


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_the_pull_of_a_candidate_is_that_of_its_groups_source_topic(strength: float) -> None:
    rng = np.random.default_rng(0)
    groups = Groups.draw(3, strength, 0.4, 0.5, Streams(1))
    match, group = rng.random((6, 2, TOPIC_COUNT)), rng.integers(3, size=6)
    user, day, topic = rng.integers(6, size=40), rng.integers(2, size=40), rng.integers(TOPIC_COUNT, size=40)
    expected = [
        (1 - strength) * match[u, d, t] + strength * match[u, d, groups.source[group[u], t]]
        for u, d, t in zip(user, day, topic, strict=True)
    ]
    assert groups.pull(match, group, user, day, topic) == pytest.approx(expected, abs=1e-12)


def test_the_stated_share_of_what_is_read_is_the_typical_readers() -> None:
    """Total weights follow as a geometric series: visibility / (1 - visibility) is added to each reader's own."""
    rng = np.random.default_rng(0)
    groups = Groups.draw(2, 1.0, 0.25, 0.5, Streams(1))
    own, group, supply = rng.random((5, 4, TOPIC_COUNT)), np.array([0, 1, 1, 0, 1]), rng.random((4, TOPIC_COUNT))
    added = groups.reads(own, group, supply, 2.0) - own
    assert added.sum(-1) / (own + added).sum(-1) == pytest.approx(np.full((5, 4), 0.25))
    typical = np.exp(2.0 * groups.typical[group][:, None]) * supply
    assert added / added.sum(-1, keepdims=True) == pytest.approx(typical / typical.sum(-1, keepdims=True))


def test_the_ceiling_with_groups_is_the_auc_of_the_true_logits(tmp_path: Path) -> None:
    settings = Settings(600, 400, seed=2, groups=4)
    truth = synthesize(tmp_path / "out", 600, 400, 2, groups=4)
    rows = list(MindReader(tmp_path / "out").behaviors("dev"))
    aucs = []
    for block in simulate(settings, Catalogue(settings)):
        dev = block.impressions["dev"]
        for scores in Ragged(dev.candidates.offsets, dev.logits):
            clicked = np.array(rows[len(aucs)].labels) == 1
            ahead = scores[clicked][:, None] - scores[~clicked]
            aucs.append(((ahead > 0) + (ahead == 0) / 2).mean())
    assert len(aucs) == len(rows)
    assert truth.best_possible["auc"] == pytest.approx(np.mean(aucs), abs=1e-9)


def test_k_means_on_what_users_read_finds_strong_groups_with_an_adjusted_rand_index_above_four_fifths(
    strong: tuple[Catalogue, list[Block]],
) -> None:
    catalogue, blocks = strong
    read = np.concatenate([_counts(catalogue, block.history["train"]) for block in blocks])
    shares = np.sqrt(read / read.sum(axis=1, keepdims=True))  # Hellinger: favourite topics weigh less
    found = KMeans(STRONG.groups, n_init=5, random_state=0).fit_predict(shares)
    assert adjusted_rand_score(np.concatenate([block.group for block in blocks]), found) > 0.8


def _linear_auc(catalogue: Catalogue, blocks: list[Block], groups: list[np.ndarray], count: int) -> float:
    """Dev AUC of one ridge regression per group and candidate topic, of clicks on the history's topics."""
    features = {
        split: [np.log1p(_counts(catalogue, block.history[split].last(50))) for block in blocks]
        for split in ("train", "dev")
    }
    gram = np.tile(10 * np.eye(TOPIC_COUNT), (count, TOPIC_COUNT, 1, 1))
    moment = np.zeros((count, TOPIC_COUNT, TOPIC_COUNT))
    for number, block in enumerate(blocks):
        shown = block.impressions["train"]
        lengths = shown.candidates.lengths()
        user, topic = np.repeat(shown.user, lengths), catalogue.topic[shown.candidates.values]
        target = shown.labels - np.repeat(
            np.add.reduceat(shown.labels, shown.candidates.offsets[:-1]) / lengths, lengths
        )
        key = groups[number][user] * TOPIC_COUNT + topic
        for cell in np.unique(key):
            x = features["train"][number][user[key == cell]]
            gram[divmod(cell, TOPIC_COUNT)] += x.T @ x
            moment[divmod(cell, TOPIC_COUNT)] += x.T @ target[key == cell]
    weights = np.linalg.solve(gram, moment[..., None])[..., 0]
    sums = RankingSums()
    for number, block in enumerate(blocks):
        shown = block.impressions["dev"]
        user, topic = np.repeat(shown.user, shown.candidates.lengths()), catalogue.topic[shown.candidates.values]
        scores = (features["dev"][number][user] * weights[groups[number][user], topic]).sum(axis=1)
        sums += RankingSums.of(scores, shown.labels, shown.candidates.offsets)
    return sums.means()["auc"]


def test_groups_need_models_of_their_own(strong: tuple[Catalogue, list[Block]]) -> None:
    """A regression on histories, fitted per true group, is far better than one for all; per random group, worse."""
    catalogue, blocks = strong
    true = [block.group for block in blocks]
    shuffled = [np.random.default_rng(number).permutation(group) for number, group in enumerate(true)]
    one = _linear_auc(catalogue, blocks, [np.zeros_like(group) for group in true], 1)
    assert _linear_auc(catalogue, blocks, true, STRONG.groups) > one + 0.04
    assert _linear_auc(catalogue, blocks, shuffled, STRONG.groups) < one


def test_the_command_line_has_every_setting_with_its_default() -> None:
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    assert {name for name, *_ in _GENERATOR} == fields.keys() - {"users", "news", "seed"}
    for name, kind, text in _GENERATOR:
        assert kind is fields[name].type
        assert f"(default {fields[name].default:g})" in text


def test_settings_on_the_command_line_reach_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    size = ["--users", "50", "--news", "200"]
    options = ["--groups", "2", "--group-strength", "0.5", "--cold-users", "0", "--history", "30"]
    assert main(["data", "synthesize", "--out", str(out), *size, *options]) == 0
    expected = Settings(50, 200, groups=2, group_strength=0.5, cold_users=0.0, history=30.0)
    assert Truth.read(out).settings == expected
    assert "2 hidden groups" in capsys.readouterr().out
    assert main(["data", "synthesize", "--out", str(tmp_path / "no"), *size, "--drift", "2"]) == 2
    assert "drift 2.0: it must lie between 0 and 1" in capsys.readouterr().err
