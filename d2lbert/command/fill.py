"""`d2lbert fill`: predict the masked tokens of a text."""
from d2lbert.command.flags import add_precision, at_least


def add(commands):
    """Add this sub-command to the parser."""
    fill = commands.add_parser(
        'fill', help='predict the masked words of a text',
        description='Predict the masked words of a text: print the likeliest '
        'tokens at each mask with their probabilities, one per line. An '
        'empty line separates the masks.')
    fill.add_argument('folder', metavar='FOLDER', help='a folder of a '
                      'pretrained model, or a run folder')
    fill.add_argument('text', help="for example 'the capital of france is "
                      "[MASK] .'; for the whole words of a run, <mask>")
    fill.add_argument('--top', type=at_least(1), default=5, metavar='N',
                      help='how many tokens for each mask (default: 5)')
    add_precision(fill.add_argument)
    fill.set_defaults(run=run, needs='d2lbert.training.load')


def run(args):
    """Print the predictions; returns the exit status."""
    from d2lbert.pretrained.fill_mask import fill_mask
    from d2lbert.training.load import load
    _, net, tokenizer = load(args.folder, heads=(), trainable=False,
                             precision=args.precision)
    guesses = fill_mask(net, tokenizer, args.text, args.top)
    print('\n\n'.join('\n'.join(
        f'{guess.token} {guess.probability:.4f}' for guess in of_mask)
        for of_mask in guesses))
    return 0
