"""Construct a net from its `config`, or a BERT of Devlin et al. 2018."""
from d2lbert.bert import BERTModel
from d2lbert.pretrained.families.bart import BARTModel
from d2lbert.pretrained.families.family import DISTILBERT, family_of


def net_of(config):
    """Construct a `BERTModel` or `BARTModel` with the keywords `config`."""
    if not isinstance(config, dict):
        raise TypeError('the config of a model must be a dict of arguments, '
                        f'not {config!r}')
    net_class = BARTModel if family_of(config).has_decoder else BERTModel
    return net_class(**config)


#: Keywords of a published BERT of any size, where they differ from the book's.
PUBLISHED = dict(dropout=0.1, max_len=512, activation='gelu',
                 layer_norm_eps=1e-12, embedding_norm=True,
                 tie_embeddings=True)

#: Keywords of a published DistilBERT (Sanh et al. 2019, section 3).
PUBLISHED_DISTILBERT = {**PUBLISHED, **DISTILBERT.structure}


def bert_base(vocab_size, **keywords):
    """BERT base: 12 blocks of 768 hiddens, 12 heads; not initialized.

    keywords: arguments of `BERTModel`, which replace the published values.
    With a vocabulary of 30,522 tokens, BERT base has 110 million parameters,
    as published.
    """
    return _published_bert(vocab_size, 12, 768, 12, keywords)


def bert_large(vocab_size, **keywords):
    """BERT large: 24 blocks of 1024 hiddens, 16 heads; not initialized.

    Arguments are as for `bert_base`. BERT large has 336 million parameters,
    published as 340 million.
    """
    return _published_bert(vocab_size, 24, 1024, 16, keywords)


def _published_bert(vocab_size, num_layers, num_hiddens, num_heads, keywords):
    sizes = dict(num_hiddens=num_hiddens, num_heads=num_heads,
                 ffn_num_hiddens=4 * num_hiddens)
    if 'num_blks' not in keywords:      # another name of num_layers
        sizes['num_layers'] = num_layers
    return BERTModel(vocab_size, **{**PUBLISHED, **sizes, **keywords})
