"""Fixtures that several rooms share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fednews.data.cohort import CohortSource
from fednews.data.features import NewsInfo, news_features
from fednews.data.mind import MindReader
from fednews.data.store import Store, write_store
from fednews.data.synthetic import synthesize
from fednews.data.tables import BehaviorRow, NewsRow, Problems
from fednews.models.base import NewsModel
from fednews.models.dan import DAN
from fednews.models.dfm import DFM
from fednews.models.dkn import DKN
from fednews.models.ebnr import EBNR
from fednews.models.fcf import FCF
from fednews.models.fednewsrec import FedNewsRecModel
from fednews.models.fm import FM
from fednews.models.lstur import LSTUR
from fednews.models.naml import NAML
from fednews.models.npa import NPA
from fednews.models.nrms import NRMS
from fednews.models.plm_nr import PLMNR
from fednews.models.private import PrivateRecModel
from fednews.streams import Streams
from tests.models.tiny_bert import tiny_bert

REAL_DATA = Path(os.environ.get("FEDNEWS_REAL_DATA", Path(__file__).parents[2] / "shared" / "data"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Several OpenMP threads under contention run many times slower than one."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real click data, which may not be distributed with the repository."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"real data is not at {REAL_DATA}; set FEDNEWS_REAL_DATA to its folder")
    return REAL_DATA


class RowsReader:
    """A reader of rows that a test writes down: ``{split: (news rows, behaviour rows)}``."""

    name = "rows"

    def __init__(self, splits: dict[str, tuple[list[NewsRow], list[BehaviorRow]]], **options: object) -> None:
        self._splits = splits
        self.splits = tuple(splits)
        self.options = options
        self.problems = Problems()

    def news(self, split: str) -> Iterator[NewsRow]:
        return iter(self._splits[split][0])

    def behaviors(self, split: str) -> Iterator[BehaviorRow]:
        return iter(self._splits[split][1])


@pytest.fixture
def rows_store(tmp_path: Path) -> Callable[..., Store]:
    """Makes a store from rows; see :class:`RowsReader`."""

    def make(splits: dict, name: str = "store", **options: object) -> Store:
        return write_store(RowsReader(splits, **options), tmp_path / name)

    return make


@pytest.fixture(scope="session")
def synthetic_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A small synthetic data set, generated, written as MIND files and prepared as a user would."""
    folder = tmp_path_factory.mktemp("synthetic")
    synthesize(folder / "raw", users=60, news=200, seed=3)
    return write_store(MindReader(folder / "raw"), folder / "store")


@pytest.fixture
def streams() -> Streams:
    return Streams(7)


@pytest.fixture
def cohorts(synthetic_store: Store, streams: Streams) -> CohortSource:
    """Cohorts of the synthetic data with all inputs that any model reads."""
    features = news_features(synthetic_store, INPUTS, 30, 50, tiny_bert())
    return CohortSource(synthetic_store, features, negatives=4, history_length=20, streams=streams)


INPUTS = ("title", "abstract", "category", "subcategory", "title_entities", "title_pieces", "news")

# Small instances. Those without word embeddings take ``train_words`` for what they have instead.
MODELS = {
    "nrms": lambda info, **kw: NRMS(info, word_dim=12, heads=2, head_dim=5, query_dim=7, **kw),
    "naml": lambda info, **kw: NAML(info, word_dim=12, filters=10, category_dim=4, query_dim=7, **kw),
    "fednewsrec": lambda info, **kw: FedNewsRecModel(
        info, word_dim=12, filters=9, heads=2, head_dim=5, recent=6, query_dim=7, **kw
    ),
    "npa": lambda info, **kw: NPA(info, word_dim=12, filters=10, user_dim=6, query_dim=7, **kw),
    "lstur_ini": lambda info, **kw: _lstur(info, "ini", **kw),
    "lstur_con": lambda info, **kw: _lstur(info, "con", **kw),
    "ebnr": lambda info, train_words=True, **kw: EBNR(info, dim=12, state_dim=8, train_news=train_words, **kw),
    "dkn": lambda info, **kw: DKN(
        info, word_dim=12, entity_dim=6, filters=5, windows=(1, 3), attention_dim=7, score_dim=8, **kw
    ),
    "dkn_product": lambda info, **kw: DKN(
        info, word_dim=12, entity_dim=6, filters=5, windows=(1, 3), scoring="product", **kw
    ),
    "dan": lambda info, **kw: DAN(
        info, word_dim=12, entity_dim=6, filters=5, windows=(1, 2), dim=9, attention_dim=7, **kw
    ),
    "fm": lambda info, train_words=True, **kw: FM(info, factors=8, **kw),
    "dfm": lambda info, **kw: DFM(
        info, word_dim=12, entity_dim=6, category_dim=4, dim=9, hidden=10, depths=(1, 2), query_dim=7, **kw
    ),
    "fcf": lambda info, train_words=True, **kw: FCF(info, factors=8, **kw),
    "private_naml": lambda info, **kw: PrivateRecModel(info, lambda info: MODELS["naml"](info, **kw), basis=4),
    "private_nrms": lambda info, **kw: PrivateRecModel(info, lambda info: MODELS["nrms"](info, **kw), basis=4),
    "plm_nr": lambda info, train_words=False, dropout=0.2, **kw: PLMNR(
        info,
        tiny_bert(),
        freeze_layers=None if train_words else 1,
        **{"pretrained": False, "heads": 2, "head_dim": 5, "query_dim": 7, "plm_dropout": dropout} | kw,
        dropout=dropout,
    ),
}


def _lstur(info: NewsInfo, variant: str, dropout: float = 0.2, **settings: object) -> LSTUR:
    sizes = {"word_dim": 12, "filters": 9, "topic_dim": 4, "query_dim": 7}
    return LSTUR(info, variant, masking=dropout, dropout=dropout, **sizes, **settings)


@pytest.fixture(params=sorted(MODELS))
def make_model(request: pytest.FixtureRequest, synthetic_store: Store, streams: Streams) -> Callable[..., NewsModel]:
    """Makes a small instance of each model in turn, with the same weights at every call."""
    info = NewsInfo.of(synthetic_store, None, streams)

    def make(**settings: object) -> NewsModel:
        with streams.torch_global("test_model"):
            return MODELS[request.param](info, **settings)

    return make


@pytest.fixture
def nrms(synthetic_store: Store, streams: Streams) -> NewsModel:
    """A small NRMS without dropout."""
    with streams.torch_global("test_model"):
        return MODELS["nrms"](NewsInfo.of(synthetic_store, None, streams), dropout=0.0)
