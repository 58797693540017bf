"""Outputs of BART in transformers, in a separate environment.

seq2seq.py make DIR SEED makes folders with random weights for SHAPES. DIR/0
and so on generate texts; DIR/0-classify and so on score texts. Each has a
tokenizer, and peers.npz with the outputs for random texts. seq2seq.py small
DIR SEED makes small folders DIR/bart-0 and so on, which are in fixtures/.
seq2seq.py score FOLDER... writes the outputs of other folders. This file is
run as a program, and imported for its constants.
"""
import json
import sys
from pathlib import Path

from relatives import LENS, SMALLER, learnt, loaded, write_tokenizer

SIZES = dict(vocab_size=90, d_model=24, encoder_layers=2, decoder_layers=2,
             encoder_attention_heads=3, decoder_attention_heads=3,
             encoder_ffn_dim=40, decoder_ffn_dim=40,
             max_position_embeddings=40)
#: Configurations, each with a special feature.
SHAPES = [
    dict(SIZES),
    dict(SIZES, decoder_layers=3, decoder_attention_heads=4,
         decoder_ffn_dim=18, scale_embedding=True, forced_bos_token_id=0),
    dict(SIZES, encoder_layers=1, activation_function='relu', d_model=14,
         encoder_attention_heads=7, decoder_attention_heads=2,
         pad_token_id=3, eos_token_id=1, decoder_start_token_id=0,
         forced_eos_token_id=None, vocab_size=131),
    dict(SIZES, activation_function='gelu_new', decoder_layers=1,
         encoder_ffn_dim=14, max_position_embeddings=36)]
#: Settings of generation, by name.
HOW = {
    'greedy': dict(num_beams=1),
    'longer': dict(num_beams=1, min_length=9),
    'beams': dict(num_beams=2),
    'more': dict(num_beams=4, length_penalty=2.0),
    'short': dict(num_beams=4, length_penalty=-1.0),
    'early': dict(num_beams=3, early_stopping=True),
    'never': dict(num_beams=2, early_stopping='never', length_penalty=0.7),
    'apart': dict(num_beams=3, no_repeat_ngram_size=2, min_length=6)}
MAX_LENGTH = 14
#: Settings of generation in the folder.
SAID = dict(num_beams=2, length_penalty=1.5, max_length=12, min_length=4,
            no_repeat_ngram_size=3, early_stopping=True)
#: Lengths of the target texts.
TARGET_LENS = [9, 14, 1, 5]


def make(place, seed, small=False):
    """Save random models of each shape, or small ones."""
    import torch
    torch.manual_seed(int(seed))
    for i, shape in enumerate(SHAPES):
        if small:
            shape = {name: SMALLER.get(value, value)
                     for name, value in shape.items()}
        name = f'bart-{i}' if small else str(i)
        save(Path(place, name), shape)
        save(Path(place, f'{name}-classify'), dict(shape, num_labels=3),
             'ForSequenceClassification')


def save(folder, shape, kind='ForConditionalGeneration'):
    """Save a random model and its outputs."""
    import torch
    import transformers
    config = transformers.BartConfig(**shape)
    net = getattr(transformers, f'Bart{kind}')(config)
    with torch.no_grad():
        for name, param in net.named_parameters():
            is_norm = 'norm' in name and name.endswith('weight')
            param.normal_(float(is_norm), 0.2)
        # Generated tokens should depend on their positions
        net.model.decoder.embed_positions.weight.normal_(0, 1)
        if kind == 'ForConditionalGeneration':
            net.final_logits_bias.normal_(0, 0.2)
            # Otherwise hardly any text would end
            net.final_logits_bias[0, config.eos_token_id] += 1.5
            said = dict(SAID, forced_bos_token_id=shape.get(
                'forced_bos_token_id'))
            for name, value in said.items():
                setattr(net.generation_config, name, value)
    net.save_pretrained(folder)
    write_tokenizer(folder, config.pad_token_id)
    score(folder)


def texts(config):
    """Random ids (4, 33), or (4, 9) if short, and targets, with lengths."""
    import numpy as np
    rng = np.random.RandomState(0)
    found, short = [], config.max_position_embeddings < max(LENS)
    for lens in [-(-n // 4) for n in LENS] if short else LENS, TARGET_LENS:
        ids = rng.randint(0, config.vocab_size - 1, (len(lens), max(lens)))
        ids += ids >= config.pad_token_id
        real = np.arange(max(lens)) < np.array(lens)[:, None]
        ids[~real] = config.pad_token_id
        found += [ids, np.array(lens)]
    return found


def score(folder):
    """Write the outputs of the model in `folder` for random texts."""
    import numpy as np
    import torch
    net, said = loaded(folder)
    ids, lens, targets, target_lens = texts(net.config)
    inputs = dict(input_ids=torch.tensor(ids), attention_mask=torch.tensor(
        (np.arange(ids.shape[1]) < lens[:, None]).astype('int64')))
    found = dict(ids=ids, lens=lens, targets=targets,
                 target_lens=target_lens, segments=0 * ids)
    if hasattr(net, 'qa_outputs'):
        with torch.no_grad():
            answers = net(**inputs)
        return write(folder, dict(found, first=answers.start_logits,
                                  last=answers.end_logits), said)
    if not hasattr(net, 'final_logits_bias'):
        # Texts end once
        end = net.config.eos_token_id
        ids[ids == end] = end + 1
        ids[range(len(ids)), lens - 1] = end
        found.update(learnt(net, dict(inputs, input_ids=torch.tensor(ids))))
        return write(folder, found, said)
    with torch.no_grad():
        alone = net.model(**inputs)
        found.update(hidden=alone.last_hidden_state,
                     mlm=net(**inputs).logits)
    labels = np.where(np.arange(targets.shape[1]) < target_lens[:, None],
                      targets, -100)
    outputs = net(**inputs, labels=torch.tensor(labels))
    outputs.loss.backward()
    found.update(
        encoded=outputs.encoder_last_hidden_state.detach(),
        scores=outputs.logits.detach(), loss=outputs.loss.detach(),
        norm=sum(param.grad.double().pow(2).sum()
                 for param in net.parameters()).sqrt())
    with torch.no_grad():
        shifted = net.prepare_decoder_input_ids_from_labels(
            torch.tensor(targets))
        found['decoded'] = net.model(
            **inputs, decoder_input_ids=shifted).last_hidden_state
        for name, how in dict(HOW, folder={}).items():
            if how:     # replace all settings of the folder
                how = {**dict(length_penalty=1.0, no_repeat_ngram_size=0,
                              min_length=0, early_stopping=False,
                              max_length=MAX_LENGTH), **how}
            found[f'ids_{name}'] = net.generate(**inputs, **how)
    write(folder, found, said)


def write(folder, found, said):
    """Write the outputs, and messages while loading."""
    import numpy as np
    np.savez_compressed(Path(folder, 'peers.npz'), **found)
    Path(folder, 'peers.json').write_text(json.dumps(dict(said=said)))


if __name__ == '__main__':
    if sys.argv[1] in ('make', 'small'):
        make(*sys.argv[2:], sys.argv[1] == 'small')
    else:
        for folder in sys.argv[2:]:
            score(folder)
