"""Run `d2lbert fill`: predict the masked tokens of a text."""
from d2lbert.command.flags import (
    add_device,
    add_json,
    add_precision,
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
    fill = commands.add_parser(
        'fill', help='predict the masked words of a text',
        description='Predict the masked words of a text: print the likeliest '
        'tokens for each mask with their probabilities, one per line. An '
        'empty line separates the masks. With --file, each text is printed '
        'before the tokens for its masks.')
    add = fill.add_argument
    add('folder', metavar='FOLDER|RUN', help='the folder of a pretrained '
        'model, or a run folder')
    add('text', nargs='?', help="for example 'the capital of france is "
        "[MASK] .'; a run whose tokens are whole words has <mask> instead")
    add_texts(add, 'fill the masks of each line of a file instead')
    add('--top', type=at_least(1), default=5, metavar='N',
        help='number of tokens for each mask (default: 5)')
    add_precision(add)
    add_device(add)
    add_json(add, 'a line for each mask, with its text and its guesses')
    fill.set_defaults(run=run, check=check_folders,
                      needs='d2lbert.training.load')


def run(args):
    """Print the predictions; returns the exit status."""
    from d2lbert.pretrained.fill_mask import fill_mask
    from d2lbert.texts.text_sources import Line, Lines
    from d2lbert.training.load import load
    check_text_or_file(args.text, args.file, args.text_field, args.skip_empty)
    has_file = args.file is not None
    if has_file:
        lines = Lines(args.file, args.text_field, args.skip_empty,
                      single_pass=True)
    else:
        lines = [Line('the text', args.text)]
    # heads=(): load heads without warnings; `fill_mask` checks the MLM head
    _, net, tokenizer = load(args.folder, device_of(args.devices), heads=(),
                             trainable=False, precision=args.precision)
    for k, (line_name, text) in enumerate(lines):
        try:
            guess_lists = fill_mask(net, tokenizer, text, args.top)
        except ValueError as error:
            if has_file:
                raise ValueError(f'{line_name}: {error}') from None
            raise
        if args.json:
            for mask, guesses in enumerate(guess_lists):
                print_json(dict(text=text, mask=mask, guesses=[
                    guess._asdict() for guess in guesses]))
            continue
        if k:
            print()     # an empty line between texts
        if has_file:
            print(text)
        blocks = ['\n'.join(f'{guess.token} {guess.probability:.4f}'
                            for guess in guesses) for guesses in guess_lists]
        print('\n\n'.join(blocks), flush=True)
    if has_file and lines.skipped:
        note(lines.skipped_note())
    return 0
