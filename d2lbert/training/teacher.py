"""Load the teacher of a run, and derive the settings of its student."""
import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

from d2lbert.objectives.text_objective import ARCHITECTURES
from d2lbert.pretrained.families.config import DEFAULTS
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import Vocab
from d2lbert.training.load import load as load_folder
from d2lbert.training.settings import complete


class Teacher(NamedTuple):
    """A net whose outputs another net, the student, learns."""

    path: Path
    net: Any            # a `BERTModel` without gradients
    vocab: Any          # the vocabulary of the net, a `Vocab`
    sha256: str         # hash of the weights of encoder and MLM head

    @classmethod
    def load(cls, path):
        """Load a run of `pretrain` or a pretrained model from a folder.

        Raises ValueError for any other folder, and for a model from which no
        student can learn.
        """
        path = Path(path)
        _, net, tokenizer = load_folder(
            path, heads=('mlm',), trainable=False, precision='fp32',
            task_head=False)
        if net.decoder is not None:
            raise ValueError(f'the teacher {path} is a BART, and students '
                             'have no decoder: choose a model without one, '
                             'such as BERT or DistilBERT')
        if net.config.get('causal'):
            raise ValueError(f'the teacher {path} predicts next tokens, and '
                             'a student learns masked ones: choose a model '
                             'that was trained with masked words')
        vocab = tokenizer.vocab
        if not isinstance(vocab, Vocab):
            vocab = PieceVocab(tokenizer, f'the teacher {path}')
        if len(vocab) != net.config['vocab_size']:
            raise ValueError(
                f'the teacher {path} scores {net.config["vocab_size"]} '
                f'tokens, but its tokenizer has {len(vocab)}: choose a model '
                'in which these numbers are equal')
        if net.has_random('mlm'):
            raise ValueError(f'the teacher {path} has no head that predicts '
                             'masked words, which a student learns '
                             'from: choose a model with this head')
        return cls(path, net, vocab, _hash_weights(net))

    def student_settings(self, keywords):
        """Return all settings of a student's run, given some as `keywords`.

        The defaults of tokenizer, architecture and sizes are the teacher's,
        with half as many layers.
        """
        config = self.net.config
        num_groups = config.get('num_groups')
        defaults = dict(
            tokenizer=self._tokenizer_setting,
            architecture=_architecture_setting(config),
            num_layers=math.ceil(config['num_layers'] / 2),
            embedding_size=config.get('embedding_size'),
            # The layers of a group share their weights, as in ALBERT
            share_layers=num_groups == 1 and config['num_layers'] > 1,
            **{name: config[name] for name in (
                'num_hiddens', 'ffn_num_hiddens', 'num_heads')})
        if self.net.nsp is None:
            defaults['objective'] = 'mlm'
        return complete({**defaults, **keywords})

    @property
    def _tokenizer_setting(self):
        return 'wordpiece' if isinstance(self.vocab, PieceVocab) else 'words'

    def check(self, settings, vocab=None):
        """Raise ValueError for settings that fit no student of this teacher.

        vocab: the vocabulary of a resumed run, used in place of the settings
        `vocab` and `vocab_size`.
        """
        s, config = settings, self.net.config
        if s['tokenizer'] != self._tokenizer_setting:
            raise ValueError(
                f'the teacher {self.path} has the tokenizer '
                f'{self._tokenizer_setting}, but the settings ask for '
                f'tokenizer={s["tokenizer"]}: leave tokenizer (--tokenizer) '
                'out')
        if vocab is None and s['vocab'] is not None:
            vocab = (PieceVocab if s['tokenizer'] == 'wordpiece'
                     else Vocab).load(s['vocab'])
        size = s['vocab_size'] if vocab is None else len(vocab)
        has_other_size = size not in (None, len(self.vocab))
        has_other_tokens = (vocab is not None and vocab.idx_to_token
                            != self.vocab.idx_to_token)
        if has_other_size or has_other_tokens:
            raise ValueError(
                f'a student must have the vocabulary of its teacher: '
                f'{self.path} has {len(self.vocab)} tokens, but the settings '
                f'give another vocabulary, of {size} tokens: leave vocab '
                '(--vocab) and vocab_size (--vocab-size) out, or choose '
                'another teacher')
        if s['max_len'] > self.net.encoder.max_len:
            raise ValueError(
                f'max_len={s["max_len"]} is more than the '
                f'{self.net.encoder.max_len} positions of the teacher '
                f'{self.path}: lower it (--max-len)')
        if s['cosine_weight'] and s['num_hiddens'] != config['num_hiddens']:
            raise ValueError(
                f'the cosine loss needs equal num_hiddens: the student has '
                f'{s["num_hiddens"]}, and its teacher {self.path} has '
                f'{config["num_hiddens"]}: give cosine_weight=0 '
                f'(--cosine-weight 0), or num_hiddens={config["num_hiddens"]} '
                '(--num-hiddens)')


def _hash_weights(net):
    hasher = hashlib.sha256()
    for name, param in sorted(net._collect_params_with_prefix().items()):
        # A student does not learn from other heads, which may be random
        if name.startswith(('encoder.', 'mlm.')):
            hasher.update(f'{name} {param.shape}'.encode())
            hasher.update(param.data().asnumpy().tobytes())
    return hasher.hexdigest()


def _architecture_setting(config):
    config = {**DEFAULTS, **config}
    config['heads'] = tuple(config['heads'])    # a list if read from JSON
    for name in ('distilbert', 'published'):
        # Nets of one architecture may differ in these three entries
        required = {key: value for key, value in ARCHITECTURES[name].items()
                    if key not in ('dropout', 'max_len', 'family')}
        if all(config[key] == value for key, value in required.items()):
            return name
    return 'book'
