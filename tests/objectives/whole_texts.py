"""Small runs of the objectives that predict whole texts."""
import d2lbert as d2l

#: {objective: the settings of such a run}
TINY = {objective: dict(
    corpus='sample', objective=objective, batch_size=40, max_len=24,
    num_hiddens=8, ffn_num_hiddens=8, num_layers=1, num_steps=4, seed=1,
    eval_every=2) for objective in ('clm', 'denoise')}


def finished_run(tmp_path_factory, objective):
    """The folder of a finished run of word pieces, with its checkpoints."""
    return d2l.pretrain(tmp_path_factory.mktemp(objective) / 'run',
                        devices='cpu', save_every=1, accumulate=2,
                        tokenizer='wordpiece', vocab_size=600,
                        **TINY[objective])
