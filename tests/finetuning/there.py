"""Run transformers on PyTorch in a separate environment.

there.py JOBS.json: a list of jobs, each a dictionary; what they give is
written to the file that a job names as `out`.
"""
import json
import logging
import sys


def main(path):
    """Carry out all jobs in one process: importing takes longest."""
    with open(path) as file:
        jobs = json.load(file)
    import transformers
    said = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger('transformers').addHandler(handler)
    for job in jobs:
        said.clear()
        net = getattr(transformers, job['auto']).from_pretrained(
            job['folder']).eval()
        found = dict(train(net, job) if 'batches' in job
                     else score(net, job), said=said)
        with open(job['out'], 'w') as file:
            json.dump(found, file)


def score(net, job):
    """The logits of texts, the labels' names, the class."""
    import torch
    import transformers
    tokenizer = transformers.AutoTokenizer.from_pretrained(job['folder'])
    found = []
    with torch.no_grad():
        for texts in job['texts']:
            out = net(**tokenizer(*texts, return_tensors='pt'))
            logits = (torch.stack([out.start_logits, out.end_logits], -1)
                      if hasattr(out, 'start_logits') else out.logits)
            found.append(logits[0].tolist())
    return dict(logits=found, labels=net.config.id2label,
                kind=type(net).__name__, problem=net.config.problem_type,
                numbers=net.config.label2id)


def train(net, job):
    """The losses of steps with AdamW, clipping, warm-up and decay."""
    import torch
    params = list(net.named_parameters())
    # Training mode, without dropout
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    net.train()
    optimizer = torch.optim.AdamW(
        [dict(params=[p for _, p in params if p.ndim > 1],
              weight_decay=job['weight_decay']),
         dict(params=[p for _, p in params if p.ndim == 1],
              weight_decay=0.0)], lr=job['lr'])
    losses = []
    for rate, batch in zip(job['rates'], job['batches']):
        tokens, segments, lens, labels = (
            torch.tensor(column) for column in batch)
        mask = (torch.arange(tokens.shape[1]) < lens[:, None]).long()
        loss = net(input_ids=tokens, token_type_ids=segments,
                   attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), job['clip'])
        for group in optimizer.param_groups:
            group['lr'] = rate
        optimizer.step()
        losses.append(loss.item())
    return dict(losses=losses)


if __name__ == '__main__':
    main(sys.argv[1])
