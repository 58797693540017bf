"""The settings of a run, and the named sets of them."""

#: Where the text comes from and how the run is kept.
SOURCE = dict(corpus='wikitext-2', data_dir=None, valid=None,
              valid_share=0.05, split='book', vocab=None, seed=None,
              eval_every=None, save_every=None, recipe='book')

#: The chapter's own settings: what `pretrain` does without arguments.
BOOK = dict(
    batch_size=512, max_len=64, num_hiddens=128, ffn_num_hiddens=256,
    num_heads=2, num_layers=2, dropout=0.2, precision='fp32', lr=0.01,
    num_steps=50, log_interval=1, accumulate=1, warmup=0.0, decay='none',
    weight_decay=0.0, clip=0.0, initializer='xavier', dynamic=False,
    fill=False)

#: What learns more in the same time; the README shows by how much. Many small
#: steps serve it better than few large ones: ten minutes on two cores.
LEARN = dict(
    BOOK, batch_size=64, lr=0.002, num_steps=5000, log_interval=100,
    warmup=0.1, decay='linear', weight_decay=0.01, clip=1.0,
    initializer='normal', dropout=0.1, dynamic=True)

RECIPES = {'book': BOOK, 'learn': LEARN}
