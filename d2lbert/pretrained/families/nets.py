"""Construct a net from its `config`, or a BERT of a published size.

The published sizes are in Devlin et al. 2018, section 3.
"""
from d2lbert.bert import BERTModel
from d2lbert.pretrained.families.bart import BARTModel
from d2lbert.pretrained.families.family import DISTILBERT, family_of


def net_of(config):
    """Construct a `BERTModel` or `BARTModel`; config: its keywords, a dict."""
    if not isinstance(config, dict):
        raise TypeError('the config of a model must be a dict of arguments, '
                        f'not {config!r}')
    model = BARTModel if family_of(config).has_decoder else BERTModel
    return model(**config)


#: Keywords by which the published architecture differs from the book's, except
#: the numbers of layers, heads and hidden units.
PUBLISHED = dict(dropout=0.1, max_len=512, activation='gelu',
                 layer_norm_eps=1e-12, embedding_norm=True,
                 tie_embeddings=True)

#: Keywords of the architecture of DistilBERT (Sanh et al. 2019, section 3).
DISTILLED = {**PUBLISHED, **DISTILBERT.structure}


def bert_base(vocab_size, **keywords):
    """BERT base: 12 blocks of 768 hiddens, 12 heads; not initialized.

    keywords: arguments of `BERTModel`, which replace the published values.
    With a vocabulary of 30,522 tokens, BERT base has 110 million parameters,
    as published.
    """
    return _published(vocab_size, 768, 12, 12, keywords)


def bert_large(vocab_size, **keywords):
    """BERT large: 24 blocks of 1024 hiddens, 16 heads; not initialized.

    Arguments are as for `bert_base`. BERT large has 336 million parameters,
    published as 340 million.
    """
    return _published(vocab_size, 1024, 16, 24, keywords)


def _published(vocab_size, num_hiddens, num_heads, num_layers, keywords):
    """A BERT with PUBLISHED and these sizes; `keywords` may replace both."""
    sizes = dict(num_hiddens=num_hiddens, ffn_num_hiddens=4 * num_hiddens,
                 num_heads=num_heads, num_layers=num_layers)
    return BERTModel(vocab_size, **{**PUBLISHED, **sizes, **keywords})
