"""The teacher of a run: loading it, and what its student takes over."""
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from d2lbert.objectives.mlm_nsp import ARCHITECTURES
from d2lbert.pretrained.families.config import DEFAULTS
from d2lbert.pretrained.tokenizers.vocabulary import PieceVocab
from d2lbert.text import Vocab
from d2lbert.training.load import load_model
from d2lbert.training.settings import complete


class Teacher(NamedTuple):
    """A net that others learn from."""

    path: Path
    net: Any            # a `BERTModel` without gradients
    vocab: Any          # its `Vocab`
    sha256: str         # of the weights that teach

    @classmethod
    def load(cls, path):
        """The teacher in a RUN, or in a FOLDER of a pretrained model.

        Raises ValueError for one that cannot teach.
        """
        path = Path(path)
        net, tokenizer = load_model(path, heads=('mlm',), trainable=False)
        if net.decoder is not None:
            raise ValueError(f'the teacher {path} is a BART, whose decoder '
                             'no student has: choose a BERT, or a relative '
                             'of one stack of layers')
        if net.config.get('causal'):
            raise ValueError(f'the teacher {path} predicts next tokens, and '
                             'a student learns from masked ones: choose one '
                             'that was trained with masked words')
        vocab = tokenizer.vocab
        if not isinstance(vocab, Vocab):
            vocab = PieceVocab(tokenizer, f'the teacher {path}')
        if len(vocab) != net.config['vocab_size']:
            raise ValueError(
                f'the teacher {path} scores {net.config["vocab_size"]} '
                f'tokens, but its tokenizer has {len(vocab)}: choose one '
                'that has as many of both')
        found = cls(path, net, vocab, _digest(net))
        if found.lacks('mlm'):
            raise ValueError(f'the teacher {path} has no head that predicts '
                             'masked words, so it has nothing to teach: '
                             'choose one with it')
        return found

    def lacks(self, part):
        """Whether a part, of names.PARTS, was drawn at random."""
        described = self.net.pretrained
        return described is not None and described.lacking(part)

    def completed(self, keywords):
        """All settings of a student's run; `complete` has those of others.

        What is not given of the tokenizer and the model is as it is here,
        but for the layers, of which there are half as many.
        """
        config = self.net.config
        groups = config.get('num_groups')
        found = dict(
            tokenizer=self._tokenizer, architecture=_architecture(config),
            num_layers=-(-config['num_layers'] // 2),
            embedding_size=config.get('embedding_size'),
            share_layers=groups == 1 < config['num_layers'],
            **{name: config[name] for name in (
                'num_hiddens', 'ffn_num_hiddens', 'num_heads')})
        if self.net.nsp is None:
            found['objective'] = 'mlm'
        return complete({**found, **keywords})

    @property
    def _tokenizer(self):
        return 'wordpiece' if isinstance(self.vocab, PieceVocab) else 'words'

    def check(self, settings, vocab=None):
        """Refuse settings of which no student can be made.

        vocab: that of a run that goes on, in place of what they name.
        """
        s, config = settings, self.net.config
        if s['tokenizer'] != self._tokenizer:
            raise ValueError(
                f'the vocabulary of the teacher {self.path} is of '
                f'{self._tokenizer}, and tokenizer={s["tokenizer"]}: leave '
                'tokenizer (--tokenizer) out')
        if vocab is None and s['vocab'] is not None:
            vocab = (PieceVocab if s['tokenizer'] == 'wordpiece'
                     else Vocab).load(s['vocab'])
        size = s['vocab_size'] if vocab is None else len(vocab)
        if size not in (None, len(self.vocab)) or vocab is not None and (
                vocab.idx_to_token != self.vocab.idx_to_token):
            raise ValueError(
                f'the vocabulary of {len(self.vocab)} tokens of the teacher '
                f'{self.path} is that of its student, too, and not another '
                f'of {size}: leave vocab (--vocab) and vocab_size '
                '(--vocab-size) out, or choose another teacher')
        if s['max_len'] > self.net.encoder.max_len:
            raise ValueError(
                f'max_len={s["max_len"]} is more than the '
                f'{self.net.encoder.max_len} positions of the teacher '
                f'{self.path}: lower it (--max-len)')
        if s['cosine_weight'] and s['num_hiddens'] != config['num_hiddens']:
            raise ValueError(
                f'there is no cosine between the {s["num_hiddens"]} hiddens '
                f'of the model and the {config["num_hiddens"]} of its '
                f'teacher {self.path}: give cosine_weight=0 (--cosine-weight '
                f'0), or num_hiddens={config["num_hiddens"]} (--num-hiddens)')


def _digest(net):
    """sha256 of the encoder's and the MLM head's values."""
    found = hashlib.sha256()
    for name, param in sorted(net._collect_params_with_prefix().items()):
        # Other heads teach nothing, and may be drawn anew each time
        if name.startswith(('encoder.', 'mlm.')):
            found.update(f'{name} {param.shape}'.encode())
            found.update(param.data().asnumpy().tobytes())
    return found.hexdigest()


def _architecture(config):
    """The setting `architecture` of a net like this one; book of all others.
    """
    config = {**DEFAULTS, **config, 'heads': tuple(
        config.get('heads', DEFAULTS['heads']))}
    for name in ('distilbert', 'published'):
        if all(config[key] == value
               for key, value in ARCHITECTURES[name].items()
               if key not in ('dropout', 'max_len', 'family')):
            return name
    return 'book'
