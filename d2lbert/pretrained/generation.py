"""Generate texts by greedy search or beam search.

A net with a decoder generates a new text for each input text. A causal net,
without a decoder, continues each text. The results equal those of
`transformers` with the same settings.

K: the number of beams, unfinished texts that a search extends. V: the number
of tokens in the vocabulary.
"""
import math
from typing import Any, Iterable, List, NamedTuple, Optional, Union

import numpy as onp

from d2lbert.machine.arguments import check_model, check_sizes, items_of
from d2lbert.machine.backend import autograd
from d2lbert.machine.terminal import warn, warn_once
from d2lbert.nn.checks import on_device
from d2lbert.nn.layers import log_softmax
from d2lbert.pretrained.encoding import text_bar
from d2lbert.pretrained.families.bart import Caches, encode_text
from d2lbert.pretrained.families.config import (
    GENERATION_FIELDS,
    generation_fields_of_run,
)
from d2lbert.pretrained.tokenizers.tokenizer import as_tokenizer
from d2lbert.texts.examples import pad_rows

#: Texts in a batch.
BATCH_SIZE = 16

#: {unsupported setting of a folder: the value with which it has no effect}
UNSUPPORTED = {
    'do_sample': False, 'num_beam_groups': 1, 'repetition_penalty': 1.0,
    'diversity_penalty': 0.0, 'encoder_no_repeat_ngram_size': 0,
    'bad_words_ids': None, 'suppress_tokens': None, 'max_new_tokens': None,
    'min_new_tokens': None}


class GenerationConfig(NamedTuple):
    """Settings of text generation; lengths count tokens."""

    start_id: int           # the first token, unless a text is continued
    end_id: int             # the token that ends a text
    max_len: int            # of a text, start_id included
    min_len: int = 0        # of a text, start_id included, end_id excluded
    num_beams: int = 1      # K; 1 means greedy search
    #: Beam search compares texts by log-probability / length ** length_penalty
    length_penalty: float = 1.0
    no_repeat_ngram: int = 0    # size of n-grams that never repeat; 0: none
    #: When to end a search that has K finished texts. True: at once. False:
    #: when the best beam scores no better than the worst finished text.
    #: 'never': when the best beam could not score better at any length.
    early_stopping: Union[bool, str] = False
    first_id: Optional[int] = None  # the token after start_id; None: any
    last_id: Optional[int] = None   # the max_len-th token; None: any

    def validated(self, net):
        """Return self, 4.0 as 4; raise ValueError if it is invalid for net."""
        whole_numbers = {}
        for name, minimum in (('num_beams', 1), ('max_len', 2),
                              ('min_len', 0), ('no_repeat_ngram', 0)):
            value = getattr(self, name)
            check_sizes(minimum, **{name: value})
            whole_numbers[name] = int(value)
        if not _is_number(self.length_penalty):
            raise ValueError('length_penalty must be a number, not '
                             f'{self.length_penalty!r}')
        # 1 equals True, but the search asks for True itself
        if not (isinstance(self.early_stopping, bool)
                or self.early_stopping == 'never'):
            raise ValueError('early_stopping must be True, False or '
                             f"'never', not {self.early_stopping!r}")
        V, positions = net.config['vocab_size'], _num_positions(net)
        for name in 'start_id', 'end_id', 'first_id', 'last_id':
            value = getattr(self, name)
            if value is not None and not (type(value) is int
                                          and 0 <= value < V):
                raise ValueError(f'{name} must be one of the {V} token ids, '
                                 f'not {value!r}')
        # The last token needs no position, because the net never reads it
        if self.max_len > positions + 1:
            raise ValueError(f'max_len={self.max_len} must be at most '
                             f'{positions + 1}, the {positions} positions of '
                             'this model and the last token: lower it')
        if 2 * self.num_beams > V:      # step 1 extends one beam in 2K ways
            raise ValueError(f'num_beams={self.num_beams} is more than half '
                             f'of the {V} tokens: lower it')
        # Then length ** length_penalty is at most e ** 600, which fits a float
        max_penalty = 600 / math.log(self.max_len)
        if self.num_beams > 1 and abs(self.length_penalty) > max_penalty:
            raise ValueError(f'length_penalty={self.length_penalty} must be '
                             f'from {-int(max_penalty)} to {int(max_penalty)} '
                             f'for texts of up to {self.max_len} tokens: '
                             'choose a number near 1')
        return self._replace(**whole_numbers)

    def exclude_tokens(self, log_probs, tokens):
        """Set the log_probs (V,) of excluded next tokens to -inf, in place.

        tokens: the ids of the text so far. Returns log_probs.
        """
        if self.no_repeat_ngram:
            repeating = _repeating_tokens(tokens, self.no_repeat_ngram)
            log_probs[repeating] = -onp.inf
        if len(tokens) < self.min_len:
            log_probs[self.end_id] = -onp.inf
        for position, forced in ((1, self.first_id),
                                 (self.max_len - 1, self.last_id)):
            if forced is not None and len(tokens) == position:
                log_probs[:] = -onp.inf
                log_probs[forced] = 0   # probability 1
        return log_probs

    def is_finished(self, tokens):
        return tokens[-1] == self.end_id or len(tokens) >= self.max_len


def _num_positions(net):
    return (net.encoder if net.decoder is None else net.decoder).max_len


def _is_number(value):
    """True for an int or a float that is not infinite, NaN or huge."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)
            and abs(value) < 1e9)


def _repeating_tokens(tokens, n):
    """The next ids that would repeat an n-gram of the list `tokens`."""
    begin_of_ngram = tokens[len(tokens) - n + 1:]       # the last n - 1 tokens
    return [tokens[k + n - 1] for k in range(len(tokens) - n + 1)
            if tokens[k:k + n - 1] == begin_of_ngram]


def config_of(net, tokenizer):
    """The `GenerationConfig` of a net, from its folder or training run."""
    loaded_folder = net.pretrained      # a `contents.Pretrained`, or None
    fields = (loaded_folder.fields['generation_fields'] if loaded_folder
              else generation_fields_of_run(net, tokenizer))
    ignored = [f'{field}={fields[field]!r}'
               for field, neutral_value in UNSUPPORTED.items()
               if fields.get(field) not in (None, neutral_value)]
    if ignored and loaded_folder:   # a run has no such settings
        warn(f'{loaded_folder.folder}: its generation settings have '
             f'{", ".join(ignored)}, which is not supported and ignored')
    settings = {'max_len': _num_positions(net) + 1}
    for field, name in GENERATION_FIELDS.items():
        if fields.get(field) is not None:
            settings[name] = fields[field]
    start_id = fields.get('decoder_start_token_id')
    if start_id is None:
        start_id = net.config.get('start_id', tokenizer.cls_id)
    end_id = fields.get('eos_token_id')
    if end_id is None:
        end_id = tokenizer.sep_id
    return GenerationConfig(start_id, end_id, **settings)


def generate(net: Any, tokenizer: Any, texts: Iterable[str],
             num_beams: Optional[int] = None, max_len: Optional[int] = None,
             min_len: Optional[int] = None,
             length_penalty: Optional[float] = None,
             no_repeat_ngram: Optional[int] = None, use_cache: bool = True,
             show_progress: Optional[bool] = None) -> List[str]:
    """Generate a text for each input text: a list of strings.

    A net with causal=True (`objective='clm'`) continues each text instead: the
    results begin with the text, and max_len and min_len count its tokens, too.
    If an argument is None, the folder of the net gives the value. If the
    folder has no value either, the default below holds.

    num_beams: 1, the default, for greedy search; more for beam search.
    max_len: maximum number of tokens of a result, with the start token. The
    default is the limit of the net or, for a run, the largest length in
    training. min_len: minimum number of tokens, without the end token; the
    default is 0. length_penalty: beam search divides the log-probability of a
    text by its length to this power; the default is 1. no_repeat_ngram:
    n-grams of this size never occur twice; 0, the default, for no limit.
    use_cache=False decodes all earlier tokens again for each new token, as a
    net without a decoder always does, with the same results. show_progress: as
    for `encode`.

    Input texts are truncated if they have more tokens than the model can read
    or, for a run, than it was trained with. For each tokenizer, the first call
    that truncates issues a `TextWarning`. Raises ValueError or TypeError for
    invalid arguments.
    """
    tokenizer = as_tokenizer(tokenizer)
    check_model(net, tokenizer)
    texts = items_of(texts)
    has_decoder = net.decoder is not None
    if not has_decoder and not net.config.get('causal'):
        raise ValueError('this model has no decoder and does not read from '
                         'left to right, so it can generate nothing: give a '
                         'BART or a run of --objective clm (d2lbert fill '
                         'guesses masked words)')
    if net.mlm is None:
        raise ValueError('this model is fine-tuned, and no longer has the '
                         'head that predicts tokens, so it can generate '
                         'nothing: give the model that was fine-tuned')
    arguments = dict(num_beams=num_beams, max_len=max_len, min_len=min_len,
                     length_penalty=length_penalty,
                     no_repeat_ngram=no_repeat_ngram)
    config = config_of(net, tokenizer)._replace(**{
        name: value for name, value in arguments.items() if value is not None
    }).validated(net)
    trained_len = net.trained_len       # None if unknown
    max_input = trained_len or net.encoder.max_len
    inputs = tokenizer.encode_batch(texts)
    num_truncated = sum(len(encoded.ids) > max_input for encoded in inputs)
    if num_truncated:
        inputs = tokenizer.encode_batch(texts, max_len=max_input)
        warn_once(tokenizer, 'cut to generate', f'{num_truncated} of '
                  f'{len(inputs)} texts have more than {max_input} tokens '
                  'and were cut')
    generate_batch = generated_ids if has_decoder else continued_ids
    results = []
    with text_bar(len(inputs), 'generating', show_progress) as bar:
        for begin in range(0, len(inputs), BATCH_SIZE):
            batch = [encoded.ids
                     for encoded in inputs[begin:begin + BATCH_SIZE]]
            results += generate_batch(net, batch, config, use_cache,
                                      tokenizer.pad_id)
            bar.update(len(batch))
    if trained_len and max_len is None:
        num_at_limit = sum(len(ids) == config.max_len for ids in results)
        if num_at_limit:
            warn_once(tokenizer, 'ended', f'{num_at_limit} of {len(results)} '
                      f'texts end at {trained_len} tokens, the length that '
                      'the model was trained at')
    elif trained_len and config.max_len > trained_len + has_decoder:
        # has_decoder adds 1 for start_id, which trained_len does not count
        warn_once(tokenizer, 'later positions', 'the model was trained on '
                  f'{trained_len} tokens at most: the vectors of later '
                  'positions are random')
    return [tokenizer.decode(ids) for ids in results]


def generated_ids(net, texts, config, use_cache=True, pad_id=0):
    """Generate a text for each of the texts; texts are lists of ids."""
    lens = onp.array(list(map(len, texts)), 'int32')
    ids = pad_rows(texts, pad_id)
    searches = [_new_search(config) for _ in texts]
    with autograd.pause():
        encoded_X = encode_text(net, ids, lens)
        _run_searches(net, searches, encoded_X, lens, use_cache)
    return [search.best for search in searches]


def continued_ids(net, texts, config, use_cache=False, pad_id=0):
    """Continue each text, a list of ids that ends in <sep>, in place of <sep>.

    use_cache and pad_id are ignored: each step computes all earlier tokens
    again, which is cheap enough for small nets.
    """
    results = []
    for text in texts:
        search = _new_search(config, text[:-1])
        search.done = config.is_finished(search.sequences[0])
        while not search.done:
            tokens = onp.array(search.sequences, 'int32')
            with autograd.pause():
                X = net.encoder(tokens, onp.zeros_like(tokens), None)[:, -1]
                logits = net.mlm.mlp(X).asnumpy()
            search.step(log_softmax(logits.astype('float64')))
        results.append(search.best)
    return results


def _new_search(config, start=None):
    return (Greedy if config.num_beams == 1 else Beams)(config, start)


def _run_searches(net, searches, encoded_X, lens, use_cache):
    """Extend all searches by one token at a time until they are done.

    Search k is for input text k, whose lens[k] tokens have the vectors
    encoded_X[k].
    """
    # A row is a beam of an active search. text_of_row: index of its input text
    text_of_row = [k for k, search in enumerate(searches)
                   for _ in search.sequences]
    # Without use_cache, the length of `caches` stays 0, so that all tokens of
    # a row are decoded again
    caches = Caches(len(net.decoder.blks))
    active = list(range(len(searches)))     # indices of searches
    ctx = encoded_X.ctx
    encoded_rows = encoded_X.take(on_device(text_of_row, ctx, 'int32'), axis=0)
    while active:
        tokens = onp.array([ids for k in active
                            for ids in searches[k].sequences], 'int32')
        new_tokens = tokens[:, caches.length:]
        X = net.decoder(new_tokens, net.encoder, encoded_rows,
                        lens[text_of_row], caches if use_cache else None)
        logits = net.mlm.mlp(X[:, -1]).asnumpy()
        log_probs = log_softmax(logits.astype('float64'))
        # extended_rows: the row that each row of the next step extends
        extended_rows, still_active, end = [], [], 0
        for k in active:
            search, begin = searches[k], end
            end += len(search.sequences)
            extended_beams = search.step(log_probs[begin:end])
            if not search.done:
                extended_rows += [begin + beam for beam in extended_beams]
                still_active.append(k)
        rows_change = extended_rows != list(range(len(text_of_row)))
        if still_active and rows_change:
            text_of_row = [text_of_row[row] for row in extended_rows]
            if use_cache:   # the decoder does not read encoded_rows again
                caches.select(extended_rows, len(tokens))
            else:
                encoded_rows = encoded_rows.take(
                    on_device(extended_rows, ctx, 'int32'), axis=0)
        active = still_active


class Greedy:
    """Greedy search: the likeliest token extends the single beam, so K is 1.

    start: the first ids of the text; None: [config.start_id]. Attributes:
    sequences, the ids of each beam; done, True if the search has ended.
    """

    def __init__(self, config, start=None):
        self.config, self.done = config, False
        self.sequences = [[config.start_id] if start is None
                          else list(start)]

    def step(self, log_probs):
        """Extend each beam by a token; log_probs (K, V) are for that token.

        Returns, for each new beam, the index of the old beam that it extends.
        """
        tokens, = self.sequences
        log_probs = self.config.exclude_tokens(log_probs[0], tokens)
        tokens.append(int(log_probs.argmax()))
        self.done = self.config.is_finished(tokens)
        return [0]

    @property
    def best(self):
        return self.sequences[0]


class Beams:
    """Beam search, with the interface of `Greedy`.

    The score of a beam is the sum of its tokens' log-probabilities. Each step
    ranks the extensions of all beams by score. Finished ones among the first K
    join the finished texts, of which those with the K largest values of
    score / length ** length_penalty are kept (length: without the last token).
    The first K unfinished extensions become the new beams.
    """

    def __init__(self, config, start=None):
        self.config, self.done = config, False
        start = [config.start_id] if start is None else start
        self.sequences = [list(start) for _ in range(config.num_beams)]
        # The beams are equal. The scores make step 1 extend beam 0 alone,
        # unless it has too few allowed tokens
        self.scores = onp.full(config.num_beams, -1e9)
        self.scores[0] = 0
        self.finished = []  # (score / length ** penalty, ids), best first

    def step(self, log_probs):
        """Extend the beams by a token, as `Greedy.step` does."""
        config, K, V = self.config, self.config.num_beams, log_probs.shape[1]
        length = len(self.sequences[0])     # without the new token
        # (K*V,): the scores of all extensions
        totals = onp.concatenate([
            score + config.exclude_tokens(row, tokens) for score, row, tokens
            in zip(self.scores, log_probs, self.sequences)])
        # (score, index of the extended beam, ids) of the 2K best, best first
        extensions = [
            (totals[k], int(k) // V, [*self.sequences[k // V], int(k) % V])
            for k in onp.argsort(-totals, kind='stable')[:2 * K]]
        # A score below -1e8 is of an excluded token or of a copy of beam 0
        self.finished += [
            (score / length ** config.length_penalty, tokens)
            for score, _, tokens in extensions[:K]
            if config.is_finished(tokens) and score > -1e8]
        self.finished = sorted(self.finished, key=lambda text: -text[0])[:K]
        new_beams = [extension for extension in extensions
                     if not config.is_finished(extension[2])][:K]
        if not new_beams:
            self.done = True
            return []
        self.scores = onp.array([score for score, _, _ in new_beams])
        self.sequences = [tokens for _, _, tokens in new_beams]
        self.done = len(self.finished) == K and (
            config.early_stopping is True or not self._can_improve(length))
        return [extended_beam for _, extended_beam, _ in new_beams]

    def _can_improve(self, length):
        """True if the best beam may beat the worst finished text.

        length: of the best beam without its last token.
        """
        config = self.config
        if config.early_stopping == 'never' and config.length_penalty > 0:
            # A longer text can score better
            length = config.max_len - 1
        worst_finished, _ = self.finished[-1]
        return (self.scores[0] / length ** config.length_penalty
                > worst_finished)

    @property
    def best(self):
        """The ids of the best finished text, or of the best beam so far."""
        return self.finished[0][1] if self.finished else self.sequences[0]
