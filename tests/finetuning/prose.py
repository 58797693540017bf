"""Made-up prose whose labels follow from its words, and tasks' files of it.

A net that reads can learn each: a mood from adjectives, whether two lines
say the same, how much they share, names of people and places, and where an
answer stands.
"""
import json
import random

PEOPLE = ['anna', 'omar', 'mei', 'lars', 'Ines Vega', 'old Tom']
PLACES = ['Oslo', 'the harbour', 'New Lagos', 'Kyoto', 'the old mill']
GLAD = ['bright', 'splendid', 'gentle', 'warm', 'clever']
SAD = ['dreary', 'broken', 'bitter', 'hollow', 'grim']
THINGS = ['boat', 'song', 'kettle', 'letter', 'garden', 'film', 'clock']
DEEDS = ['mends', 'paints', 'sells', 'follows', 'forgets', 'carries']


def facts(rng, moods=GLAD + SAD):
    """The content of a line: (who, does, what sort, what, where)."""
    return tuple(map(rng.choice, (PEOPLE, DEEDS, moods, THINGS, PLACES)))


def line(told, rng):
    """A line in one of several word orders, sometimes with a stray quote."""
    who, does, sort, what, where = told
    text = rng.choice([f'{who} {does} a {sort} {what} in {where} .',
                       f'in {where} , {who} {does} the {sort} {what} .'])
    return f'" {text}' if rng.random() < .1 else text


def moods(num, seed=0):
    """[(text, 0 or 1)]: whether the thing is a glad one."""
    rng = random.Random(seed)
    found = []
    for k in range(num):
        label = rng.randrange(2)
        found.append((line(facts(rng, GLAD if label else SAD), rng), label))
    return found


def pairs(num, seed=0):
    """[(text, text, shared)]: of 5 facts, how many two lines have alike."""
    rng = random.Random(seed)
    found = []
    for k in range(num):
        a, b = facts(rng), facts(rng)
        mixed = [x if rng.random() < .5 else y for x, y in zip(a, b)]
        found.append((line(a, rng), line(mixed, rng),
                      sum(x == y for x, y in zip(a, mixed))))
    return found


def tagged(num, seed=0):
    """[[(word, tag)]]: people and places, in IOB2."""
    rng = random.Random(seed)
    found = []
    for k in range(num):
        told = facts(rng)
        rows = []
        for text, kind in ((told[0], 'PER'), (told[1], ''), ('a', ''),
                           (told[2], ''), (told[3], ''), ('in', ''),
                           (told[4], 'LOC'), ('.', '')):
            rows += [(word, kind and f'{"I" if j else "B"}-{kind}' or 'O')
                     for j, word in enumerate(text.split())]
        found.append(rows)
    return found


def squad(num, seed=0, lines=4, impossible=0.0):
    """SQuAD's layout: who does what where, among several lines."""
    rng = random.Random(seed)
    paragraphs = []
    for k in range(num):
        deeds, told = rng.sample(DEEDS, lines), []
        for does in deeds:
            who, _, *rest = facts(rng)
            told.append((who, does, *rest))
        context = ' '.join(line(one, rng) for one in told)
        does = rng.choice(deeds)
        place = told[deeds.index(does)][4]
        clause = next(part for part in context.split(' .')
                      if f' {does} ' in part)
        begin = context.index(clause) + clause.index(place)
        qa = {'id': f'q{seed}-{k}', 'question': f'Where is what one {does}?',
              'answers': [{'text': place, 'answer_start': begin}]}
        if impossible:
            qa['is_impossible'] = rng.random() < impossible
            if qa['is_impossible']:
                qa['answers'] = []
                qa['question'] = 'Who sings?'
        paragraphs.append({'context': context, 'qas': [qa]})
    return {'version': '2.0' if impossible else '1.1',
            'data': [{'title': 'prose', 'paragraphs': paragraphs}]}


# Files

def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def write_rows(path, rows, header=None):
    """A table with tabs, as GLUE writes it."""
    return write(path, ''.join(
        '\t'.join(map(str, row)) + '\n'
        for row in ([header.split()] if header else []) + list(rows)))


def glue(folder, task, num=60, parts=('train', 'dev')):
    """Write a task of GLUE in its official layout; returns its folder."""
    name = {'sst2': 'SST-2', 'cola': 'CoLA', 'stsb': 'STS-B',
            'rte': 'RTE'}[task]
    for seed, part in enumerate(parts):
        path = folder / name / f'{part}.tsv'
        if task == 'sst2':
            write_rows(path, moods(num, seed), 'sentence label')
        elif task == 'cola':
            write_rows(path, [('gj04', label, '' if label else '*', text)
                              for text, label in moods(num, seed)])
        elif task == 'stsb':
            write_rows(path, [
                (k, 'main', 'prose', '2012', k, 'none', 'none', a, b,
                 f'{shared:.3f}')
                for k, (a, b, shared) in enumerate(pairs(num, seed))],
                'index genre filename year old_index source1 source2 '
                'sentence1 sentence2 score')
        else:
            write_rows(path, [
                (k, a, b, 'entailment' if shared > 3 else 'not_entailment')
                for k, (a, b, shared) in enumerate(pairs(num, seed))],
                'index sentence1 sentence2 label')
    return folder / name


def mnli(folder, num=30):
    """Write MNLI and the diagnostic set as GLUE lays them out."""
    trees = ('genre sentence1_binary_parse sentence2_binary_parse '
             'sentence1_parse sentence2_parse sentence1 sentence2')
    names = 'contradiction', 'neutral', 'entailment'
    ends = {'train': 1, 'dev_matched': 5, 'dev_mismatched': 5,
            'test_matched': 0, 'test_mismatched': 0}
    for seed, (part, judges) in enumerate(ends.items()):
        rows = []
        for k, (a, b, shared) in enumerate(pairs(num, seed)):
            verdict = [names[shared // 2]] * (judges + 1 if judges else 0)
            rows.append((k, k, f'{k}n', 'slate', *'bbpp', a, b, *verdict))
        labels = [f'label{k + 1}' for k in range(judges)]
        write_rows(folder / 'MNLI' / f'{part}.tsv', rows, ' '.join(
            ['index promptID pairID', trees, *labels,
             *['gold_label'] * bool(judges)]))
    told = pairs(num, 9)
    write_rows(folder / 'diagnostic' / 'diagnostic.tsv',
               [(k, a, b) for k, (a, b, _) in enumerate(told)],
               'index sentence1 sentence2')
    write(folder / 'diagnostic' / 'diagnostic-full.tsv',
          'Lexical Semantics\tPredicate-Argument Structure\tLogic\t'
          'Knowledge\tDomain\tPremise\tHypothesis\tLabel\n' + ''.join(
              f'\t\tNegation\t\tNews\t{a}\t{b}\t{names[shared // 2]}\n'
              for a, b, shared in told))
    return folder / 'MNLI'


def conll(path, sentences):
    """Write four columns as CoNLL-2003 has them."""
    return write(path, '-DOCSTART- -X- -X- O\n\n' + '\n'.join(
        ''.join(f'{word} NN B-NP {tag}\n' for word, tag in sentence)
        for sentence in sentences))


def write_squad(path, **keywords):
    return write(path, json.dumps(squad(**keywords)))


def write_tasks(root):
    """Write files of five tasks; returns {task: the folder of its files}."""
    found = {task: glue(root, task, 40) for task in ('sst2', 'stsb', 'rte')}
    for seed, part in enumerate(('train', 'dev')):
        conll(root / 'tag' / f'{part}.conll', tagged(40, seed))
        write_squad(root / 'span' / f'{part}.json', num=40, seed=seed,
                    impossible=0.2)
    return dict(found, tag=root / 'tag', span=root / 'span')
