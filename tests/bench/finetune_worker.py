"""The peer of bench_finetune: transformers on PyTorch, the same settings.

    python finetune_worker.py JOB.json [ANSWER.json]

JOB.json has the folder of a model, examples to train and to predict, and the
settings; ANSWER.json gets the predictions behind each epoch, the seconds of
training and what this peer is. Without it, each line of standard input asks
for so many steps, and is answered by a line: their seconds and examples.
AdamW, dropout, warm-up, decay and clipping
are PyTorch's and transformers' own; each batch is padded to its longest
sequence.
"""
import itertools
import json
import os
import random
import sys
import time

import numpy as onp
import torch
import transformers


def main(job_path, answer_path=None):
    with open(job_path, encoding='utf-8') as file:
        job = json.load(file)
    s = job['settings']
    transformers.logging.set_verbosity_error()
    transformers.set_seed(s['seed'])
    tokenizer = transformers.AutoTokenizer.from_pretrained(job['model'])
    regression = job['num_labels'] == 1
    net = transformers.AutoModelForSequenceClassification.from_pretrained(
        job['model'], num_labels=job['num_labels'])

    def tokens(part):
        texts = [part['texts_a']] + [part['texts_b']] * bool(part['texts_b'])
        return tokenizer(*texts, truncation=True, max_length=s['max_len'],
                         padding=False)

    def batch(encoded, rows):
        return tokenizer.pad(
            {name: [values[row] for row in rows]
             for name, values in encoded.items()}, return_tensors='pt')

    def predicted():
        net.eval()
        scores, total = [], len(job['dev']['texts_a'])
        with torch.no_grad():
            for start in range(0, total, 64):
                rows = range(start, min(start + 64, total))
                scores.append(net(**batch(dev, rows)).logits.numpy())
        scores = onp.concatenate(scores)
        return (scores[:, 0] if regression else scores.argmax(1)).tolist()
    train, dev = tokens(job['train']), tokens(job['dev'])
    labels = torch.tensor(job['train']['labels'],
                          dtype=torch.float32 if regression else torch.long)
    size, count = s['batch_size'], len(labels)
    steps = s['num_epochs'] * -(-count // size)
    plain = [p for p in net.parameters() if p.ndim < 2]
    matrices = [p for p in net.parameters() if p.ndim > 1]
    optimizer = torch.optim.AdamW(
        [dict(params=plain, weight_decay=0.0),
         dict(params=matrices, weight_decay=s['weight_decay'])], lr=s['lr'])
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, s['warmup'] * steps, steps)
    shuffle = random.Random(s['seed'])

    def batches():
        order = list(range(count))
        shuffle.shuffle(order)
        for start in range(0, count, size):
            yield order[start:start + size]

    def step(rows):
        net(**batch(train, rows), labels=labels[rows]).loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), s['clip'])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if answer_path is None:
        net.train()
        answer_lines(step, itertools.chain.from_iterable(
            batches() for _ in itertools.count()))
        return
    seconds, predictions = 0.0, []
    for _ in range(s['num_epochs']):
        net.train()
        began = time.perf_counter()
        for rows in batches():
            step(rows)
        seconds += time.perf_counter() - began
        predictions.append(predicted())
    with open(f'{answer_path}.part', 'w', encoding='utf-8') as file:
        json.dump(dict(
            predictions=predictions, seconds=seconds,
            examples=count * s['num_epochs'],
            about=f'transformers {transformers.__version__}, PyTorch '
                  f'{torch.__version__}, {torch.get_num_threads()} threads'),
            file)
    os.replace(f'{answer_path}.part', answer_path)


def answer_lines(step, batches):
    """Take so many steps as each line says; answer what they took."""
    for line in sys.stdin:
        examples, began = 0, time.perf_counter()
        for rows in itertools.islice(batches, int(line)):
            step(rows)
            examples += len(rows)
        print(json.dumps([time.perf_counter() - began, examples]), flush=True)


if __name__ == '__main__':
    main(*sys.argv[1:])
