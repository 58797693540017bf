"""The attributes that all models of this package have."""
from d2lbert.machine.backend import nn


class Model(nn.Block):
    """A network around an encoder; attributes that it may lack are None.

    `config` holds the keyword arguments that construct the network again.
    """

    #: Parts of the network: of a BART, and of a model that predicts words
    decoder = mlm = None

    #: The vocabulary that `train_bert` or `load_run` bound to the model
    vocab = None

    #: The `pretrained.folders.Pretrained` of the folder it was loaded from
    pretrained = None

    #: The kind of a fine-tuned model's head, and the `About` of its task
    kind = about = None

    #: Tokens of the longest text of its training, None if it is unknown
    trained_len = None

    #: Names of heads whose weights were drawn at random on import
    random_heads = ()
