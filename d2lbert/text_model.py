"""A `TextModel` is one object for all uses of a model; `load_model` loads it.

Shapes: L layers, A attention heads, T tokens of a text (with special tokens),
H hidden units, N texts.
"""
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Union

import numpy as onp

from d2lbert.finetuning.prediction import predict
from d2lbert.finetuning.task_kinds import Prediction
from d2lbert.machine.arguments import (
    PathLike,
    items_of,
    renamed,
    whole_number,
)
from d2lbert.nn.steps import num_parameters
from d2lbert.pictures.activations import attention_of
from d2lbert.pretrained.encoding import encode
from d2lbert.pretrained.families.family import family_of
from d2lbert.pretrained.fill_mask import Guess, fill_mask, has_mask_head
from d2lbert.pretrained.folders import save_pretrained
from d2lbert.pretrained.generation import generate
from d2lbert.pretrained.pooling import cosines
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer
from d2lbert.pretrained.tokenizers.vocabulary import TokenVocab
from d2lbert.text import Vocab
from d2lbert.training.load import load, parts_to_save

#: One text, or any iterable of texts.
Texts = Union[str, Iterable]


class Hit(NamedTuple):
    """A text that `TextModel.search` found."""

    index: int          # of the text in the argument `texts`
    text: str
    score: float        # cosine similarity


class Attention(NamedTuple):
    """The attention weights of a text or of a pair of texts."""

    tokens: list        # T strings
    weights: Any        # (L, A, T, T) float32; each [l, a, t] sums to one


# A base class, since a NamedTuple itself cannot define __new__
class _NetAndTokenizer(NamedTuple):
    net: Any            # a `BERTModel` or a relative, or a `FineTuned`
    tokenizer: Any


class TextModel(_NetAndTokenizer):
    """A net with its tokenizer, and methods that apply them to texts.

    A model is the pair (net, tokenizer): `net, tokenizer = model` works, and
    so does `d2lbert.encode(*model, texts)`. tokenizer: a tokenizer or a
    vocabulary. source: the origin of the model, which `print(model)` shows.

    A method takes texts as a list, tuple, generator, array or column of a
    table. For a single string, `encode`, `search`, `generate` and `predict`
    return one result. A method that the model does not support raises
    ValueError.
    """

    def __new__(cls, net: Any, tokenizer: Any,
                source: str = 'a net in memory') -> 'TextModel':
        """Make a model of a net in memory; `load_model` reads a folder."""
        model = super().__new__(cls, net, as_tokenizer(tokenizer))
        model.source = source
        return model

    @property
    def config(self) -> dict:
        """The keyword arguments that construct a net of this structure."""
        return self.net.config

    @property
    def vocab(self) -> Vocab:
        """The tokens and their ids, a `Vocab`."""
        return self.tokenizer.vocab or TokenVocab(self.tokenizer)

    @renamed(windows='overlap')
    def encode(self, texts: Texts, pooling: Optional[str] = 'own',
               layer: int = -1, batch_size: Optional[int] = None,
               max_len: Optional[int] = None, overlap: Optional[int] = None,
               normalize: Optional[bool] = None,
               show_progress: Optional[bool] = None) -> Any:
        """Vectors of N texts, (N, H) float32; of a single string (H,).

        The arguments are as for `d2lbert.encode`. With pooling=None, the
        result for a text is an array (T, H) of token vectors.
        """
        return self._apply(encode, texts, pooling, layer, batch_size, max_len,
                           overlap, normalize, show_progress)

    def similarity(self, a: Texts, b: Texts, **choices) -> onp.ndarray:
        """Cosine similarities of N texts `a` and M texts `b`, (N, M) float32.

        a, b: texts, a single string, or their vectors as `encode` returns
        them: arrays (N, H) and (M, H), or (H,) for one text. choices:
        arguments of `encode`.
        """
        return cosines(self._vectors(a, choices), self._vectors(b, choices))

    def search(self, queries: Texts, texts: Iterable[str], k: int = 5,
               vectors: Optional[onp.ndarray] = None, **choices
               ) -> Union[List[Hit], List[List[Hit]]]:
        """The `k` texts nearest to each query by cosine, the nearest first.

        queries: as `a` of `similarity`. vectors: the vectors of `texts`, if
        they have been encoded before. choices: arguments of `encode`. Returns
        a list of `Hit` for each query, or one list for a single string or a
        vector (H,). Texts with equal similarity keep their order.
        """
        texts = items_of(texts)
        if whole_number('k', k) < 1:
            raise ValueError(f'k={k} must be at least 1')
        if vectors is None:
            vectors = self._vectors(texts, choices)
        vectors = onp.atleast_2d(vectors)
        if len(vectors) != len(texts):
            raise ValueError(f'there are {len(vectors)} vectors of '
                             f'{len(texts)} texts: give a vector for each')
        is_single = isinstance(queries, str) or (
            _are_vectors(queries) and queries.ndim == 1)
        scores = cosines(self._vectors(queries, choices), vectors)
        nearest = onp.argsort(-scores, axis=1, kind='stable')[:, :k]
        hits = [[Hit(int(i), texts[i], float(query_scores[i]))
                 for i in indices]
                for query_scores, indices in zip(scores, nearest)]
        return hits[0] if is_single else hits

    def fill(self, text: str, top: int = 5) -> List[List[Guess]]:
        """The `top` likeliest tokens at each mask; see `d2lbert.fill_mask`."""
        return fill_mask(*self, text, top)

    def generate(self, texts: Texts, **choices) -> Union[str, List[str]]:
        """The text that the model generates from each text.

        choices: keyword arguments of `d2lbert.generate`.
        """
        return self._apply(generate, texts, **choices)

    def predict(self, texts: Texts, pairs: Optional[Texts] = None,
                show_progress: Optional[bool] = None
                ) -> Union[Prediction, List[Prediction]]:
        """A `Prediction` for each text or pair; see `d2lbert.predict`.

        For a single string, `pairs` is its second text, or its list of
        endings.
        """
        if isinstance(texts, str) and pairs is not None:
            pairs = [pairs]
        return self._apply(predict, texts, pairs, show_progress)

    def attention(self, text: str, pair: Optional[str] = None) -> Attention:
        """The `Attention` of a text, or of a pair of texts."""
        encoded = self.tokenizer.encode(text, pair)
        T, max_len = len(encoded.ids), self.net.encoder.max_len
        if T > max_len:
            raise ValueError(f'the text has {T} tokens, but this model only '
                             f'{max_len} positions: shorten it')
        return Attention(encoded.tokens, attention_of(
            self.net, encoded.ids, encoded.segments))

    def save(self, folder: PathLike) -> None:
        """Write the model as a new folder; see `d2lbert.save_pretrained`."""
        save_pretrained(*self, folder, parts_to_save(self.net))

    def _apply(self, function, texts, *others, **choices):
        """The results for all texts, or the one result for a string."""
        results = function(*self, _as_texts(texts), *others, **choices)
        return results[0] if isinstance(texts, str) else results

    def _vectors(self, texts_or_vectors, choices):
        """Encode texts, (N, H), or return an array of vectors unchanged."""
        if _are_vectors(texts_or_vectors):
            return texts_or_vectors
        if choices.get('pooling', 'own') is None:
            raise ValueError('pooling=None gives a vector of each token, and '
                             'texts are compared by one vector of each text: '
                             "leave it out, or choose one such as 'mean'")
        return encode(*self, _as_texts(texts_or_vectors), **choices)

    def _usable_methods(self):
        net = self.net
        names = ['encode', 'similarity', 'search', 'attention']
        if has_mask_head(net) and self.tokenizer.mask_id is not None:
            names.append('fill')
        if net.mlm is not None and (net.decoder is not None
                                    or net.config.get('causal')):
            names.append('generate')
        if net.about is not None:       # the net is fine-tuned
            names.append('predict')
        return [*names, 'save']

    def _task_suffix(self):
        """For example ', labels no, yes'; '' unless the net is fine-tuned."""
        about = self.net.about
        if about is None:
            return ''
        if not about.labels:
            return f', a head for task {about.kind}'
        shown = about.labels[:8]
        if len(about.labels) > 8:
            shown = [*shown, '...']
        return f', labels {", ".join(shown)}'

    def __repr__(self):
        net, config = self.net, self.config
        num_layers = net.encoder.blks.num_layers
        return (
            f'{family_of(config).title}: {num_layers} layers of '
            f'{config["num_hiddens"]}, {config["num_heads"]} heads, '
            f'{num_parameters(net):,} parameters, '
            f'{len(self.tokenizer):,} tokens{self._task_suffix()}\n'
            f'from {self.source}\n'
            f'can {", ".join(self._usable_methods())}')


def _as_texts(texts):
    return [texts] if isinstance(texts, str) else texts


def _are_vectors(value):
    return isinstance(value, onp.ndarray) and value.dtype.kind == 'f'


def load_model(path: PathLike, ctx: Any = None,
               heads: Sequence[str] = (), trainable: bool = True,
               precision: Optional[str] = None) -> TextModel:
    """Load the model in a folder of any supported kind, as a `TextModel`.

    path: the folder of a run of `pretrain` or `finetune`; a folder of
    `transformers` or sentence-transformers, with or without a task head; or a
    folder that `save` or `d2lbert export` wrote, also with int8 weights.
    Models are never downloaded.

    ctx: a device or a list of devices; None means the CPU. heads: heads that
    the folder should have, of 'pooler', 'mlm' and 'nsp'; a warning names the
    missing ones. Runs and fine-tuned models ignore heads. trainable: False
    saves the memory of gradients. precision: 'fp32', 'bf16' or 'int8'; None
    means the precision of the folder. Raises ValueError, or one of its
    subclasses `RunError` and `PretrainedError`.
    """
    found = load(path, ctx, heads, trainable, precision)
    return TextModel(found.net, found.tokenizer, f'{path}, a {found.kind}')
