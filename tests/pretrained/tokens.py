"""Ids of texts in transformers, in a separate environment.

tokens.py make DIR TEXTS makes a folder for each of KINDS, with tokenizer
files in the format of its family. They are trained on TEXTS, a JSON list.
tokens.json has the ids of the texts, alone and in pairs. tokens.py ask TEXTS
FOLDER... writes the ids for other folders. This file is run as a program, and
imported for KINDS.
"""
import json
import sys
import types
from pathlib import Path

KINDS = ['roberta', 'camembert', 'phobert', 'herbert', 'mbert', 'flaubert',
         'albert', 'metaspace']
SPECIAL = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']


def learnt(texts, size, special, end='', at_bytes=False):
    """Train a BPE: ({token: id}, [(left, right)])."""
    import tokenizers as t
    found = t.Tokenizer(t.models.BPE(end_of_word_suffix=end))
    found.pre_tokenizer = (
        t.pre_tokenizers.ByteLevel(add_prefix_space=False) if at_bytes
        else t.pre_tokenizers.WhitespaceSplit())
    found.train_from_iterator(texts, t.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special,
        end_of_word_suffix=end, initial_alphabet=t.pre_tokenizers.ByteLevel
        .alphabet() if at_bytes else []))
    model = json.loads(found.to_str())['model']
    return model['vocab'], [tuple(pair) for pair in model['merges']]


def unigram(texts, special):
    """Train a unigram model: [(token, score)]."""
    import tokenizers as t
    found = t.Tokenizer(t.models.Unigram())
    found.pre_tokenizer = t.pre_tokenizers.Metaspace()
    found.train_from_iterator(texts, t.trainers.UnigramTrainer(
        vocab_size=420, show_progress=False, special_tokens=special,
        unk_token='<unk>'))
    return [tuple(piece) for piece in
            json.loads(found.to_str())['model']['vocab']]


def write(folder, **files):
    """Files of a folder; a dict becomes JSON."""
    for name, text in files.items():
        name, _, ending = name.rpartition('_')
        (folder / f'{name}.{ending}').write_text(
            text if isinstance(text, str)
            else json.dumps(text, ensure_ascii=False), 'utf-8')


def make(place, texts):
    """Write the folders."""
    import tokenizers as t
    import transformers
    words = [text for text in texts if text.strip()]

    def written(kind, model_type, **files):
        folder = Path(place, kind)
        folder.mkdir()
        write(folder, config_json=dict(model_type=model_type), **files)
        return folder

    def merges(pairs):
        return '#version: 0.2\n' + ''.join(f'{a} {b}\n' for a, b in pairs)
    vocab, pairs = learnt(words, 330, SPECIAL, at_bytes=True)
    written('roberta', 'roberta', vocab_json=vocab, merges_txt=merges(pairs),
            tokenizer_config_json=dict(
                tokenizer_class='RobertaTokenizer', mask_token=dict(
                    content='<mask>', lstrip=True, rstrip=False,
                    normalized=False, single_word=False,
                    __type='AddedToken')))
    vocab, pairs = learnt(words, 500, SPECIAL, '</w>')
    written('herbert', 'bert', vocab_json=vocab, merges_txt=merges(pairs),
            tokenizer_config_json=dict(tokenizer_class='HerbertTokenizer'))
    written('phobert', 'roberta', vocab_txt=''.join(
        f'{token[:-4] if token.endswith("</w>") else token + "@@"} {k}\n'
        # Some results of merges have no id
        for k, token in enumerate(vocab) if token not in SPECIAL and k % 9),
        bpe_codes=''.join(f'{a} {b} {k}\n' for k, (a, b) in
                          enumerate(pairs)),
        tokenizer_config_json=dict(tokenizer_class='PhobertTokenizer'))
    special = ['<s>', '</s>', '<pad>', '<unk>', '<special0>', '<special1>']
    vocab, pairs = learnt(words, 500, special, '</w>')
    kept = [token for k, token in enumerate(vocab) if k < 6 or k % 9]
    written('flaubert', 'flaubert', vocab_json={
        token: k for k, token in enumerate(kept)}, merges_txt=''.join(
            f'{a} {b} {k}\n' for k, (a, b) in enumerate(pairs)),
        tokenizer_config_json=dict(tokenizer_class='FlaubertTokenizer'))
    cased = t.BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    cased.train_from_iterator(words, 400, show_progress=False)
    vocab = cased.get_vocab()
    written('mbert', 'bert', vocab_txt=''.join(
        f'{token}\n' for token in sorted(vocab, key=vocab.get)),
        tokenizer_config_json=dict(do_lower_case=False,
                                   tokenizer_class='BertTokenizer'))
    transformers.CamembertTokenizer(vocab=unigram(
        words, ['<s>NOTUSED', '<pad>', '</s>NOTUSED', '<unk>',
                '<unk>NOTUSED', '<s>', '</s>', '<mask>'])).save_pretrained(
        written('camembert', 'camembert'))
    transformers.AlbertTokenizer(vocab=unigram(
        words, ['<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]'])
        ).save_pretrained(written('albert', 'albert'))
    found = t.SentencePieceBPETokenizer()
    found.train_from_iterator(words, 400, show_progress=False,
                              special_tokens=SPECIAL)
    found = t.Tokenizer.from_str(found.to_str())
    found.post_processor = t.processors.RobertaProcessing(
        ('</s>', 2), ('<s>', 0), trim_offsets=False)
    found.save(str(written('metaspace', 'roberta', tokenizer_config_json=dict(
        tokenizer_class='PreTrainedTokenizerFast', cls_token='<s>',
        sep_token='</s>', pad_token='<pad>', unk_token='<unk>',
        mask_token='<mask>')) / 'tokenizer.json'))
    for kind in KINDS:
        ask(Path(place, kind), texts)


def ask(folder, texts):
    """Write the ids of the texts in transformers."""
    import transformers
    # FlauBERT's tokenizer imports it, and does not use it here
    sys.modules.setdefault('sacremoses', types.ModuleType('sacremoses'))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pairs = list(zip(texts, texts[7:] + texts[:7]))
    if type(tokenizer).__name__ == 'FlaubertTokenizer':
        def ids(text):
            return tokenizer.convert_tokens_to_ids(tokenizer._tokenize(
                tokenizer.preprocess_text(text), bypass_tokenizer=True))
        found = [[tokenizer.build_inputs_with_special_tokens(*map(ids, some))
                  for some in many]
                 for many in ([[text] for text in texts], pairs)]
    else:
        found = [tokenizer(*map(list, some)).input_ids
                 for some in ([texts], zip(*pairs))]
    write(folder, tokens_json=found)


if __name__ == '__main__':
    if sys.argv[1] == 'make':
        make(sys.argv[2], json.loads(Path(sys.argv[3]).read_text('utf-8')))
    else:
        for name in sys.argv[3:]:
            ask(Path(name), json.loads(Path(sys.argv[2]).read_text('utf-8')))
