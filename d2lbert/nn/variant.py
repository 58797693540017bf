"""`Variant` holds the differences of BERT models from the book's model."""
import dataclasses
from typing import Optional, Tuple

from d2lbert.machine.arguments import check_shares, check_sizes

#: Activations of an encoder; 'gelu_new' approximates GELU by a tanh. A block
#: used alone also takes every other activation of Gluon.
ACTIVATIONS = 'relu', 'gelu', 'gelu_new'


@dataclasses.dataclass(frozen=True)
class Variant:
    """Differences of published BERT and its relatives from the book's model.

    The defaults are the book's model. Every block takes one `Variant` and
    reads the fields that it needs. Raises ValueError for sizes, rates and
    combinations that no model can have. The nets check activation and
    precision.

    Of every model:
    positional: 'learnable', or 'sinusoidal' as in the book's first edition;
    precision: 'fp32', or 'bf16' to multiply matrices in bfloat16, while
    sums, weights and everything else stay in float32.

    Of BERT as published (Devlin et al. 2018):
    activation: of the feed-forward networks, one of `ACTIVATIONS`;
    layer_norm_eps: epsilon of each LayerNorm;
    embedding_norm: LayerNorm and dropout after the sum of the embeddings;
    num_segments: rows of the segment embedding; 0: no segment embedding;
    tie_embeddings: the output layer of the masked language model has the
    token embedding as its weight;
    attention_dropout: dropout rate of the attention weights; None: the
    argument `dropout` of the model.

    Of ALBERT (Lan et al. 2020):
    embedding_size: width of the embeddings, which a dense layer projects to
    num_hiddens; None: num_hiddens;
    num_groups: number of groups of blocks; consecutive layers share a group;
    None: layers share no blocks;
    inner_group_num: number of blocks in a group; without groups, the number of
    layers is multiplied by it.

    Of pre-LN models such as FlauBERT large (f: attention or feed-forward
    network):
    pre_norm: X + dropout(f(LayerNorm(X))) in place of
    LayerNorm(X + dropout(f(X)));
    final_norm: with pre_norm, one LayerNorm after the last block.

    Of BART (Lewis et al. 2020):
    activation_dropout: dropout rate after the activation of the feed-forward
    networks;
    scale_embedding: token embeddings are multiplied by √num_hiddens.

    Of left-to-right models such as GPT (Radford et al. 2018):
    causal: each token attends only to itself and to earlier tokens.

    Of released models:
    family: the name of the family in `pretrained.families`;
    heads: the heads that exist, of 'pooler', 'mlm' and 'nsp'; 'nsp' needs
    'pooler', 'mlm' always exists, and models with sinusoidal positions ignore
    this field;
    mlm_hidden: the masked language model head has a hidden layer;
    mlm_activation: activation of this hidden layer; None: `activation`.
    """

    positional: str = 'learnable'
    precision: str = 'fp32'
    activation: str = 'relu'
    layer_norm_eps: float = 1e-5
    embedding_norm: bool = False
    num_segments: int = 2
    tie_embeddings: bool = False
    attention_dropout: Optional[float] = None
    embedding_size: Optional[int] = None
    num_groups: Optional[int] = None
    inner_group_num: int = 1
    pre_norm: bool = False
    final_norm: bool = True
    activation_dropout: float = 0.0
    scale_embedding: bool = False
    causal: bool = False
    family: str = 'bert'
    heads: Tuple[str, ...] = ('pooler', 'mlm', 'nsp')
    mlm_hidden: bool = True
    mlm_activation: Optional[str] = None

    def __post_init__(self):
        object.__setattr__(self, 'heads', tuple(self.heads))
        check_sizes(inner_group_num=self.inner_group_num, **{
            name: getattr(self, name)
            for name in ('embedding_size', 'num_groups')
            if getattr(self, name) is not None})
        check_sizes(least=0, num_segments=self.num_segments)
        check_shares(activation_dropout=self.activation_dropout,
                     layer_norm_eps=self.layer_norm_eps)
        if self.attention_dropout is not None:
            check_shares(attention_dropout=self.attention_dropout)
        if self.positional not in ('learnable', 'sinusoidal'):
            raise ValueError("positional must be 'learnable' or 'sinusoidal', "
                             f'not {self.positional!r}')
        if self.embedding_norm and not self.learns_positions:
            raise ValueError('embedding_norm=True needs the published '
                             "model's positions, positional='learnable'")
        if 'nsp' in self.heads and 'pooler' not in self.heads:
            raise ValueError("the head 'nsp' needs the head 'pooler': name "
                             'both in heads, or neither')

    @property
    def learns_positions(self):
        """True if positions are parameters."""
        return self.positional == 'learnable'

    def blocks_of_layers(self, num_layers):
        """The block indices of each layer, a list of lists.

        Layers of a group have the same blocks. Without groups, there are
        inner_group_num * num_layers layers, each with one block. Raises
        ValueError if there are more groups than layers.
        """
        num_groups, group_size = self.num_groups, self.inner_group_num
        if num_groups is None:
            return [[k] for k in range(group_size * num_layers)]
        if num_groups > num_layers:
            raise ValueError(f'num_groups={num_groups} is more than the '
                             f'{num_layers} layers: lower num_groups')
        # A division of floats, rounded down, as the library transformers does
        group_of_layers = [int(layer / (num_layers / num_groups))
                           for layer in range(num_layers)]
        return [[*range(group * group_size, (group + 1) * group_size)]
                for group in group_of_layers]

    @classmethod
    def of(cls, variant, keywords):
        """Return `variant` with the fields that are in the dict `keywords`.

        variant: None for the book's model. Removes the fields from `keywords`.
        """
        changed = {name: keywords.pop(name) for name in FIELDS
                   if name in keywords}
        variant = variant or BOOK
        return dataclasses.replace(variant, **changed) if changed else variant

    def config(self):
        """{field: value} for the `config` of a net.

        The fields from positional to attention_dropout are always included,
        later ones only if they differ from the book's model.
        """
        always = FIELDS[:FIELDS.index('attention_dropout') + 1]
        return {name: getattr(self, name) for name in FIELDS
                if name in always
                or getattr(self, name) != getattr(BOOK, name)}


#: The names of the fields.
FIELDS = tuple(field.name for field in dataclasses.fields(Variant))

#: The book's model.
BOOK = Variant()


def num_layers_up_to(layer, num_layers):
    """The number of layers to compute for the output of `layer`.

    layer: 1 to num_layers, or 0 for the embeddings. Negative numbers count
    from the end: -1 is the last layer. Raises ValueError for a layer that does
    not exist.
    """
    if not -num_layers - 1 <= layer <= num_layers:
        raise ValueError(
            f'layer must lie between {-num_layers - 1} and {num_layers}, not '
            f'{layer}: there are {num_layers} layers after the embeddings, '
            'which are layer 0')
    return layer % (num_layers + 1)
