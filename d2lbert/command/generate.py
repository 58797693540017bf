"""Run `d2lbert generate`: generate texts with a BART, or continue texts."""
from d2lbert.command.flags import (
    add_device,
    add_json,
    add_texts,
    at_least,
    check_folders,
    device_of,
    print_json,
)
from d2lbert.machine.arguments import check_text_or_file
from d2lbert.machine.terminal import note


def add(commands):
    """Add this sub-command to the parser."""
    generate = commands.add_parser(
        'generate', help='generate texts with a BART, or continue texts',
        description='Generate a text from each given text with a BART, or '
        'continue each given text with a run of --objective clm. Print one '
        'line per text. The default of a flag is the setting that the folder '
        'stores, else the value in parentheses.')
    add = generate.add_argument
    add('folder', metavar='FOLDER|RUN', help='the folder of a pretrained '
        'BART, or a run of pretrain --objective denoise or clm')
    add('texts', nargs='*', metavar='TEXT', help="for example 'a crane "
        "[MASK] flying'")
    add_texts(add, 'generate for each line of a file instead')
    add('--num-beams', type=at_least(1), metavar='K', help='number of beams '
        'in beam search (1, greedy search)')
    add('--max-len', type=at_least(1), metavar='N', help='maximum number '
        'of tokens of a result, including the first and last special tokens; '
        'a text that is continued counts, too (the maximum of the model or '
        'the run)')
    add('--min-len', type=at_least(0), metavar='N', help='minimum number '
        'of tokens of a result, without the last special token (0)')
    add('--length-penalty', type=float, metavar='P', help='divide the '
        'score of a text by its length to the power P; a larger P favours '
        'longer texts (1.0)')
    add('--no-repeat-ngram', type=at_least(0), metavar='N', help='never '
        'generate a sequence of N tokens twice (0, no limit)')
    add_device(add)
    add_json(add, 'a line for each text, with the generated text')
    generate.set_defaults(run=run, check=check_folders,
                          needs='d2lbert.pretrained.generation')


def run(args):
    """Print one generated text per line; returns the exit status."""
    from d2lbert.pretrained.generation import generate
    from d2lbert.texts.text_sources import Lines
    from d2lbert.training.load import load
    check_text_or_file(args.texts or None, args.file, args.text_field,
                       args.skip_empty, 'texts')
    texts, has_file = args.texts, args.file is not None
    if has_file:
        lines = Lines(args.file, args.text_field, args.skip_empty)
        texts = [line.text for line in lines]
        if lines.skipped:
            note(lines.skipped_note())
    # heads=(): a missing head needs no warning: `generate` rejects the model
    _, net, tokenizer = load(args.folder, device_of(args.devices), heads=(),
                             trainable=False)
    outputs = generate(net, tokenizer, texts, args.num_beams, args.max_len,
                       args.min_len, args.length_penalty,
                       args.no_repeat_ngram,
                       show_progress=has_file)
    for text, generated in zip(texts, outputs):
        if args.json:
            print_json(dict(text=text, generated=generated))
        else:
            # A generated text may have several lines
            print(' '.join(generated.split()))
    return 0
