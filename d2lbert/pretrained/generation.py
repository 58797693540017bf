"""Texts that a model writes: the likeliest word each time, or beam search.

A decoder writes a text of its own for each text that it reads; a net that
reads from left to right continues the text.

B texts, K beams of each, S and T tokens of a text and of what is said, V
vocabulary. What is found is what `transformers` finds with the same choices.
"""
from typing import NamedTuple, Optional, Union

import numpy as onp

from d2lbert.machine.arguments import check_model
from d2lbert.machine.backend import autograd
from d2lbert.machine.terminal import warn, warn_once
from d2lbert.nn.checks import on_device
from d2lbert.pretrained.encoding import text_bar
from d2lbert.pretrained.families.bart import Caches, read
from d2lbert.pretrained.families.config import GENERATED, generation_of_run
from d2lbert.texts.token_rows import pad_rows

#: Texts that are worked on together.
TEXTS = 16

#: Fields whose other values ask for what is not done here.
OTHERS = {'do_sample': False, 'num_beam_groups': 1, 'repetition_penalty': 1.0,
          'diversity_penalty': 0.0, 'encoder_no_repeat_ngram_size': 0,
          'bad_words_ids': None, 'suppress_tokens': None,
          'max_new_tokens': None, 'min_new_tokens': None}


class How(NamedTuple):
    """How a text is said."""

    start_id: int           # what every text is said behind
    end_id: int             # ends it
    max_len: int            # tokens at most, start_id among them
    min_len: int = 0        # and at least, but for end_id
    num_beams: int = 1      # 1: the likeliest word each time
    length_penalty: float = 1.0     # sums of logarithms are divided by the
                                    # number of tokens to this power
    no_repeat_ngram: int = 0        # so many tokens never come twice; 0: all
                                    # may
    #: Whether a search ends with K whole texts; False: where the likeliest
    #: beam is worse than all of them; 'never': where it could become no
    #: better, however long.
    early_stopping: Union[bool, str] = False
    first_id: Optional[int] = None  # the token behind start_id, None: any
    last_id: Optional[int] = None   # that of place max_len

    def checked(self, net):
        """The same; refuses what is none."""
        for name, least in (('num_beams', 1), ('max_len', 2), ('min_len', 0),
                            ('no_repeat_ngram', 0)):
            value = getattr(self, name)
            if not _is_number(value) or int(value) != value or value < least:
                raise ValueError(f'{name} must be a whole number of at least '
                                 f'{least}, not {value!r}')
        if not _is_number(self.length_penalty):
            raise ValueError('length_penalty must be a number, not '
                             f'{self.length_penalty!r}')
        if self.early_stopping not in (True, False, 'never'):
            raise ValueError('early_stopping must be True, False or '
                             f"'never', not {self.early_stopping!r}")
        V, most = net.config['vocab_size'], _positions(net)
        for name in 'start_id', 'end_id', 'first_id', 'last_id':
            value = getattr(self, name)
            if value is not None and not (type(value) is int
                                          and 0 <= value < V):
                raise ValueError(f'{name} must be one of the {V} numbers of '
                                 f'tokens, not {value!r}')
        # The last token is said, and not read
        if self.max_len > most + 1:
            raise ValueError(f'max_len={self.max_len} is more than the '
                             f'{most} positions of this model, and the last '
                             'token: lower it')
        if 2 * self.num_beams > V:
            raise ValueError(f'num_beams={self.num_beams} is more than half '
                             f'of the {V} tokens: lower it')
        return self

    def allowed(self, scores, tokens):
        """Scores (V,) of the next token, with -inf where none may be."""
        if self.no_repeat_ngram:
            scores[_repeating(tokens, self.no_repeat_ngram)] = -onp.inf
        if len(tokens) < self.min_len:
            scores[self.end_id] = -onp.inf
        for place, forced in ((1, self.first_id),
                              (self.max_len - 1, self.last_id)):
            if forced is not None and len(tokens) == place:
                scores[:] = -onp.inf
                scores[forced] = 0
        return scores

    def ends(self, tokens):
        """Whether nothing can follow."""
        return tokens[-1] == self.end_id or len(tokens) >= self.max_len


def is_causal(net):
    """True if a net reads from left to right, and so can continue texts."""
    return hasattr(net, 'mlm') and bool(net.config.get('causal'))


def _positions(net):
    """How many tokens the part of a net that writes can read."""
    return getattr(net, 'decoder', net.encoder).max_len


def _is_number(value):
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and abs(value) < 1e9)


def _repeating(tokens, n):
    """The tokens that would make the last n of a text come again."""
    last = tuple(tokens[len(tokens) - n + 1:])
    return [tokens[k + n - 1] for k in range(len(tokens) - n + 1)
            if tuple(tokens[k:k + n - 1]) == last]


def how_of(net, tokenizer):
    """`How` as the folder of a net says, or a run's tokenizer."""
    described = getattr(net, 'pretrained', None)
    said = (described.config['generation'] if described
            else generation_of_run(net, tokenizer))
    strange = [f'{name}={said[name]!r}' for name, value in OTHERS.items()
               if said.get(name) not in (None, value)]
    if strange:
        warn(f'{described.folder}: its generation_config.json asks for '
             f'{", ".join(strange)}, too, which is not done here')
    chosen = {ours: said[theirs] for theirs, ours in GENERATED.items()
              if said.get(theirs) is not None}
    start, end = (said.get(f'{name}_token_id') for name in (
        'decoder_start', 'eos'))
    if start is None:
        start = net.config.get('start_id', tokenizer.cls_id)
    return How(start, tokenizer.sep_id if end is None else end,
               **{'max_len': _positions(net) + 1, **chosen})


def generate(net, tokenizer, texts, num_beams=None, max_len=None,
             min_len=None, length_penalty=None, no_repeat_ngram=None,
             use_cache=True, show_progress=None):
    """What a net with a decoder says to each text: a list of strings.

    A net with causal=True (`objective='clm'`) continues each text instead:
    its strings begin with the text, and max_len and min_len count its tokens.
    What is None is as the folder says, else: num_beams=1, the likeliest word
    each time, of more the likeliest whole text that a search finds; max_len,
    the tokens that are said, as many as the model can, or the run was trained
    on; min_len=0;
    length_penalty=1, the power of its length by which a text's sum of
    logarithms is divided; no_repeat_ngram=0, how many tokens in a row never
    come twice. Texts longer than the model are cut, which a `TextWarning`
    says once for a tokenizer. use_cache=False computes everything again for
    each word, and finds the same. show_progress: as for `encode`. Raises
    ValueError and TypeError.
    """
    check_model(net, tokenizer)
    if not hasattr(net, 'decoder') and not is_causal(net):
        raise ValueError('this model has no decoder and does not read from '
                         'left to right, so it can generate nothing: give a '
                         'BART or a run of --objective clm (d2lbert fill '
                         'guesses masked words)')
    given = dict(num_beams=num_beams, max_len=max_len, min_len=min_len,
                 length_penalty=length_penalty,
                 no_repeat_ngram=no_repeat_ngram)
    how = how_of(net, tokenizer)._replace(**{
        name: value for name, value in given.items() if value is not None
    }).checked(net)
    trained = getattr(net, 'trained_len', None)
    most = trained or net.encoder.max_len
    whole = tokenizer.encode_batch(texts)
    cut = sum(len(one.ids) > most for one in whole)
    if cut:
        whole = tokenizer.encode_batch(texts, max_len=most)
        warn_once(tokenizer, 'cut to generate', f'{cut} of {len(whole)} texts '
                  f'have more than {most} tokens and were cut')
    write = generated_ids if hasattr(net, 'decoder') else continued_ids
    said = []
    with text_bar(len(whole), 'generating', show_progress) as shown:
        for first in range(0, len(whole), TEXTS):
            some = [one.ids for one in whole[first:first + TEXTS]]
            said += write(net, some, how, use_cache, tokenizer.pad_id)
            shown.update(len(some))
    if trained and max_len is None:
        ended = sum(len(ids) == how.max_len for ids in said)
        if ended:
            warn_once(tokenizer, 'ended', f'{ended} of {len(said)} texts end '
                      f'at {trained} tokens, the length that the model was '
                      'trained at')
    elif trained and how.max_len > trained + hasattr(net, 'decoder'):
        warn_once(tokenizer, 'later positions', 'the model was trained on '
                  f'{trained} tokens at most: the vectors of later positions '
                  'are random')
    return [tokenizer.decode(ids) for ids in said]


def generated_ids(net, texts, how, use_cache=True, pad_id=0):
    """What is said to texts, lists of ids: lists of ids, from start_id on.
    """
    lens = onp.array(list(map(len, texts)), 'int32')
    ids = pad_rows(texts, pad_id)
    searches = [(Greedy if how.num_beams == 1 else Beams)(how)
                for _ in texts]
    with autograd.pause():
        encoded_X = read(net, ids, lens)
        _search(net, searches, encoded_X, lens, use_cache)
    return [search.best for search in searches]


def continued_ids(net, texts, how, use_cache=False, pad_id=0):
    """Continue texts, lists of ids with <sep> at their end: lists of ids.

    A token changes no vector before its own place, so that each step could
    keep those; a net of the sizes here computes them again.
    """
    found = []
    for text in texts:
        search = (Greedy if how.num_beams == 1 else Beams)(how, text[:-1])
        search.done = how.ends(search.sequences[0])
        while not search.done:
            tokens = onp.array(search.sequences, 'int32')
            with autograd.pause():
                X = net.encoder(tokens, onp.zeros_like(tokens), None)[:, -1]
                scores = net.mlm.mlp(X).asnumpy()
            search.step(_log_softmax(scores))
        found.append(search.best)
    return found


def _search(net, searches, encoded_X, lens, use_cache):
    """Carry out all searches, a token at a time."""
    # The number of each row's text
    rows = [k for k, search in enumerate(searches)
            for _ in search.sequences]
    caches = Caches(len(net.decoder.blks))
    begun, ctx = list(range(len(searches))), encoded_X.ctx
    texts_X = encoded_X.take(on_device(rows, ctx, 'int32'), axis=0)
    while begun:
        tokens = onp.array([tokens for k in begun
                            for tokens in searches[k].sequences], 'int32')
        new = tokens[:, caches.length:]
        X = net.decoder(new, net.encoder, texts_X, lens[rows],
                        caches if use_cache else None)[:, -1]
        scores = _log_softmax(net.mlm.mlp(X).asnumpy())
        order, at, left = [], 0, []
        for k in begun:
            search, first = searches[k], at
            at += len(search.sequences)
            chosen = search.step(scores[first:at])
            if not search.done:
                order += [first + beam for beam in chosen]
                left.append(k)
        if left and order != list(range(len(rows))):
            rows = [rows[row] for row in order]
            if use_cache:
                caches.choose(order, len(tokens))
            else:
                texts_X = texts_X.take(on_device(order, ctx, 'int32'),
                                       axis=0)
        begun = left


def _log_softmax(scores):
    scores = scores.astype('float64')
    scores -= scores.max(axis=1, keepdims=True)
    return scores - onp.log(onp.exp(scores).sum(axis=1, keepdims=True))


class Greedy:
    """One text, to which the likeliest token is added each time.

    sequences: the ids so far, of each beam a list; `step` takes the scores
    (K, V) of what could follow, and gives the numbers of the beams that the
    new ones go on from. When it is `done`, `best` is the text.
    """

    def __init__(self, how, start=None):
        self.how, self.done = how, False
        self.sequences = [[how.start_id] if start is None else list(start)]

    def step(self, scores):
        """Add a token."""
        tokens, = self.sequences
        tokens.append(int(self.how.allowed(scores[0], tokens).argmax()))
        self.done = self.how.ends(tokens)
        return [0]

    @property
    def best(self):
        """The ids of the text."""
        return self.sequences[0]


class Beams:
    """The same, with K beams: a beam's score is the sum of its tokens'.

    Of the 2K best of all that could follow, those of the first K that end
    are whole texts, of which the best K are kept by score and length; the
    best K of those that do not end go on.
    """

    def __init__(self, how, start=None):
        self.how, self.done = how, False
        start = [how.start_id] if start is None else start
        self.sequences = [list(start) for _ in range(how.num_beams)]
        # All beams begin alike: the others' tokens would be the first's
        self.scores = onp.full(how.num_beams, -1e9)
        self.scores[0] = 0
        self.whole = []         # (score, ids), the best first

    def step(self, scores):
        """Let each beam grow."""
        how, K, V = self.how, self.how.num_beams, scores.shape[1]
        length = len(self.sequences[0])
        totals = onp.concatenate([
            score + how.allowed(row, tokens) for score, row, tokens
            in zip(self.scores, scores, self.sequences)])
        best = onp.argsort(-totals, kind='stable')[:2 * K]
        found = [(totals[k], int(k) // V, [*self.sequences[k // V],
                                           int(k) % V]) for k in best]
        self.whole += [
            (score / length ** how.length_penalty, tokens)
            for score, _, tokens in found[:K]
            if how.ends(tokens) and score > -1e8]
        self.whole = sorted(self.whole, key=lambda one: -one[0])[:K]
        going = [one for one in found if not how.ends(one[2])][:K]
        if not going:
            self.done = True
            return []
        self.scores = onp.array([score for score, _, _ in going])
        self.sequences = [tokens for _, _, tokens in going]
        self.done = len(self.whole) == K and (
            how.early_stopping is True or not self._can_improve(length))
        return [beam for _, beam, _ in going]

    def _can_improve(self, length):
        """Whether the best beam may yet be better than the worst text."""
        if self.how.early_stopping == 'never' and self.how.length_penalty > 0:
            length = self.how.max_len - 1
        return self.scores[0] / length ** self.how.length_penalty > (
            self.whole[-1][0])

    @property
    def best(self):
        """The ids of the best text; of none that ended, the best so far."""
        return self.whole[0][1] if self.whole else self.sequences[0]
