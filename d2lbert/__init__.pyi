"""The BERT chapters of *Dive into Deep Learning* on MXNet 1.9.1/Gluon.

`import d2lbert as d2l` replaces the book's `d2l` package. `names.py` lists the
public names, such as `d2l.BERTModel`.
"""
# Written by tests/manual/blocks.py from names.py and the settings
import os
import pathlib
from typing import (
    Any,
    Callable,
    Iterable,
    List,
    Literal,
    Optional,
    Sequence,
    Union,
)

from d2lbert.progress import Accumulator as Accumulator
from d2lbert.progress import Animator as Animator
from d2lbert.progress import Timer as Timer
from d2lbert.devices import try_all_gpus as try_all_gpus
from d2lbert.devices import try_gpu as try_gpu
from d2lbert.hub import DATA_HUB as DATA_HUB
from d2lbert.hub import DATA_URL as DATA_URL
from d2lbert.hub import WIKITEXT_2_SHA1 as WIKITEXT_2_SHA1
from d2lbert.hub import WIKITEXT_2_URL as WIKITEXT_2_URL
from d2lbert.hub import download as download
from d2lbert.hub import download_extract as download_extract
from d2lbert.text import Vocab as Vocab
from d2lbert.text import count_corpus as count_corpus
from d2lbert.text import tokenize as tokenize
from d2lbert.attention import DotProductAttention as DotProductAttention
from d2lbert.attention import MultiHeadAttention as MultiHeadAttention
from d2lbert.attention import keep_attention as keep_attention
from d2lbert.attention import masked_softmax as masked_softmax
from d2lbert.attention import transpose_output as transpose_output
from d2lbert.attention import transpose_qkv as transpose_qkv
from d2lbert.transformer import AddNorm as AddNorm
from d2lbert.transformer import EncoderBlock as EncoderBlock
from d2lbert.transformer import PositionalEncoding as PositionalEncoding
from d2lbert.transformer import PositionWiseFFN as PositionWiseFFN
from d2lbert.transformer import TransformerEncoderBlock as TransformerEncoderBlock
from d2lbert.bert import BERTEncoder as BERTEncoder
from d2lbert.bert import BERTModel as BERTModel
from d2lbert.bert import MaskLM as MaskLM
from d2lbert.bert import NextSentencePred as NextSentencePred
from d2lbert.bert import get_tokens_and_segments as get_tokens_and_segments
from d2lbert.pretrained.families.bart import BARTModel as BARTModel
from d2lbert.bert_dataset import _get_mlm_data_from_tokens as _get_mlm_data_from_tokens
from d2lbert.bert_dataset import _get_next_sentence as _get_next_sentence
from d2lbert.bert_dataset import _get_nsp_data_from_paragraph as _get_nsp_data_from_paragraph
from d2lbert.bert_dataset import _pad_bert_inputs as _pad_bert_inputs
from d2lbert.bert_dataset import _read_wiki as _read_wiki
from d2lbert.bert_dataset import _replace_mlm_tokens as _replace_mlm_tokens
from d2lbert.bert_dataset import _WikiTextDataset as _WikiTextDataset
from d2lbert.bert_dataset import get_dataloader_workers as get_dataloader_workers
from d2lbert.bert_dataset import load_data as load_data
from d2lbert.bert_dataset import load_data_wiki as load_data_wiki
from d2lbert.bert_pretraining import _get_batch_bert as _get_batch_bert
from d2lbert.bert_pretraining import _get_batch_loss_bert as _get_batch_loss_bert
from d2lbert.bert_pretraining import get_bert_encoding as get_bert_encoding
from d2lbert.bert_pretraining import train_bert as train_bert
from d2lbert.multi_device import accuracy as accuracy
from d2lbert.multi_device import evaluate_accuracy_gpus as evaluate_accuracy_gpus
from d2lbert.multi_device import split_batch as split_batch
from d2lbert.multi_device import split_batch_multi_inputs as split_batch_multi_inputs
from d2lbert.multi_device import train_batch_ch13 as train_batch_ch13
from d2lbert.multi_device import train_ch13 as train_ch13
from d2lbert.natural_language_inference import BERTClassifier as BERTClassifier
from d2lbert.natural_language_inference import SNLIBERTDataset as SNLIBERTDataset
from d2lbert.natural_language_inference import load_pretrained_model as load_pretrained_model
from d2lbert.natural_language_inference import read_snli as read_snli
from d2lbert.pretrained.encoding import encode as encode
from d2lbert.pretrained.families.nets import bert_base as bert_base
from d2lbert.pretrained.families.nets import bert_large as bert_large
from d2lbert.pretrained.fill_mask import Guess as Guess
from d2lbert.pretrained.fill_mask import fill_mask as fill_mask
from d2lbert.pretrained.folders import load_pretrained as load_pretrained
from d2lbert.pretrained.folders import save_pretrained as save_pretrained
from d2lbert.pretrained.generation import generate as generate
from d2lbert.pretrained.heads import FineTuned as FineTuned
from d2lbert.pretrained.tensor_files import PretrainedError as PretrainedError
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords as WholeWords
from d2lbert.pretrained.tokenizers.tokenizer import WordPiece as WordPiece
from d2lbert.corpus.corpus import open_corpus as open_corpus
from d2lbert.objectives.text_objective import evaluate as evaluate
from d2lbert.nn.steps import History as History
from d2lbert.training.history import read_history as read_history
from d2lbert.training.load import load_finetuned as load_finetuned
from d2lbert.training.load import load_run as load_run
from d2lbert.training.updater import AdamW as AdamW
from d2lbert.training.saved_runs import RunError as RunError
from d2lbert.finetuning.tasks.catalog import TASKS as TASKS
from d2lbert.finetuning.tasks.catalog import read_task as read_task
from d2lbert.finetuning.prediction import evaluate_finetuned as evaluate_finetuned
from d2lbert.finetuning.prediction import predict as predict
from d2lbert.finetuning.task_kinds import Prediction as Prediction
from d2lbert.pictures.activations import plot_attention as plot_attention
from d2lbert.pictures.senses import plot_senses as plot_senses
from d2lbert.pictures.senses import sense_accuracy as sense_accuracy
from d2lbert.pictures.run_records import plot_history as plot_history
from d2lbert.pictures.show import show as show
from d2lbert.text_model import Attention as Attention
from d2lbert.text_model import Hit as Hit
from d2lbert.text_model import TextModel as TextModel
from d2lbert.text_model import load_model as load_model

__version__: str
PathLike = Union[str, os.PathLike]

def pretrain(
    out: Optional[PathLike] = None,
    force: bool = False,
    resume: Optional[PathLike] = None,
    devices: Any = 'auto',
    wanted: Optional[dict] = None,
    texts: Optional[Iterable] = None,
    callback: Optional[Callable[[dict], Any]] = None,
    *,
    corpus: Union[PathLike, List[PathLike]] = 'wikitext-2',
    data_dir: Optional[PathLike] = None,
    text_field: Optional[str] = None,
    split: Literal['auto', 'book', 'prose', 'punkt'] = 'auto',
    tokenizer: Literal['words', 'wordpiece'] = 'words',
    vocab_size: Optional[int] = None,
    min_freq: Optional[int] = None,
    vocab: Optional[PathLike] = None,
    valid: Optional[Union[PathLike, List[PathLike]]] = None,
    valid_share: float = 0.05,
    fill_sequences: bool = False,
    dynamic: bool = False,
    mask_share: float = 0.15,
    whole_word_masking: bool = False,
    max_len: int = 64,
    num_hiddens: int = 128,
    ffn_num_hiddens: int = 256,
    num_heads: int = 2,
    num_layers: int = 2,
    embedding_size: Optional[int] = None,
    share_layers: bool = False,
    dropout: float = 0.2,
    architecture: Literal['book', 'published', 'distilbert'] = 'book',
    tie_embeddings: bool = False,
    pre_norm: bool = False,
    precision: Literal['fp32', 'bf16'] = 'fp32',
    objective: Literal['mlm+nsp', 'mlm+sop', 'mlm', 'span', 'denoise', 'clm'] = 'mlm+nsp',
    noise: Literal['masking', 'deletion', 'infilling', 'sentences', 'masking+sentences', 'deletion+sentences', 'infilling+sentences'] = 'infilling+sentences',
    recipe: Literal['book', 'learn'] = 'book',
    batch_size: int = 512,
    grow_batch: float = 0.0,
    accumulate: int = 1,
    num_steps: int = 50,
    minutes: Optional[float] = None,
    lr: float = 0.01,
    warmup: float = 0.0,
    decay: Literal['none', 'linear', 'cosine'] = 'none',
    nsp_weight: float = 1.0,
    weight_decay: float = 0.0,
    clip: float = 0.0,
    average: float = 0.0,
    initializer: Literal['xavier', 'normal', 'mimetic', 'topical'] = 'xavier',
    seed: Optional[int] = None,
    teacher: Optional[PathLike] = None,
    temperature: float = 2.0,
    soft_weight: float = 5.0,
    mlm_weight: float = 2.0,
    cosine_weight: float = 1.0,
    log_interval: int = 1,
    eval_every: Optional[int] = None,
    save_every: Optional[int] = None,
    keep: int = 3,
) -> pathlib.Path:
    """Pretrain BERT and leave a run folder; returns its path.

    out: the folder (default: a new one in runs/). force: move a run in
    `out` aside. resume: a run folder or one of its checkpoints; only the
    settings in `CHANGEABLE_ON_RESUME` may then change. devices: 'auto', or
    as `d2lbert pretrain --help` explains. wanted: dict(corpus=, reason=), a
    corpus that could not be had, and why. config.json and log.txt store both;
    the run trains on the argument `corpus`.

    texts: train on these texts in place of `corpus`: a list, a generator, an
    array or a column of a table. Each text is one paragraph, or several with
    empty lines between them. All paragraphs are one article. The texts are
    written to texts.txt in the run folder.

    callback: a function that is called after each step with the numbers of
    the step: a dictionary with the columns of `read_history`, such as `step`
    and `mlm_loss`, and held-out figures if the step was evaluated. The run
    ends after this step, as a finished run, if the function returns True.
    With a callback each step waits for its losses; the losses stay the same.

    `read_history` returns the history of the run. Under `d2lbert launch`
    each worker computes its part of every batch. Only the first worker writes
    the folder; the others return None.

    The text:

    corpus: the text: wikitext-2, sample, or text files and folders, plain
        or in WikiText's format, also compressed; - is standard input
        [wikitext-2]
    data_dir: folder with wiki.train.tokens or wikitext-2/
    text_field: field of JSON lines that holds the text
    split: how sentences are found. book: at ' . ', with white space
        between words; prose: as people write; punkt: like prose, with the
        library NLTK; auto: book or prose, by a look at the text [auto]
    tokenizer: words: separated by white space; wordpiece: word pieces,
        learnt from the text [words]
    vocab_size: largest number of tokens in the vocabulary (wordpiece:
        8000; words: no limit)
    min_freq: least number of times that a word of the vocabulary occurs
        (5; less for a small text of your own, so that at most a tenth of
        its words is unknown)
    vocab: use this vocabulary instead of a new one: a token on each line;
        for wordpiece a vocab.txt, a tokenizer.json or a folder with one
    valid: held-out text files
    valid_share: share of the articles to hold out for eval_every if valid
        is not given [0.05]
    fill_sequences: fill sequences with several sentences, as the published
        BERT does
    dynamic: draw new masks and pairs in each epoch [True in learn]
    mask_share: share of the tokens to predict (objective denoise: 0.3, the
        share of tokens with noise) [0.15]
    whole_word_masking: mask all pieces of a word or none

    The model:

    max_len: largest number of tokens in a sequence, special tokens
        included [64]
    num_hiddens: size of the vector of a token [128]
    ffn_num_hiddens: size of the hidden layer of the feed-forward networks
        [256]
    num_heads: attention heads in a layer [2; 4 in learn]
    num_layers: layers of the encoder [2]
    embedding_size: size of the token embeddings, as in ALBERT; a dense
        layer maps them to num_hiddens (if not given: num_hiddens, and no
        such layer)
    share_layers: use the same weights in all layers, as ALBERT does
    dropout: dropout probability [0.2; 0.0 in learn]
    architecture: book: the network of the chapter; published: with GELU,
        LayerNorm after the embeddings and tied embeddings, as d2lbert
        export requires (with embedding_size it is an ALBERT); distilbert:
        published, without segments and pooler [book; published in learn]
    tie_embeddings: use the token embeddings as weights of the last layer
        of the MLM head, as the published BERT does
    pre_norm: apply LayerNorm before attention and feed-forward networks
        (pre-LN), not after them
    precision: fp32 or bf16: number format of matrix products [fp32]

    The training:

    objective: what is predicted. mlm+nsp: masked words and next sentences,
        as in the book; mlm+sop: masked words and the order of sentences,
        as in ALBERT; mlm: masked words in full sentences, as in RoBERTa;
        span: masked spans from their boundaries, as in SpanBERT; denoise:
        the text, from a noisy copy, as in BART; clm: the next token, as in
        GPT [mlm+nsp]
    noise: noise of objective denoise: masking or deletion of tokens, or
        infilling, which replaces a span of words by one mask; +sentences
        also shuffles the sentences [infilling+sentences]
    recipe: book: the settings of the chapter; learn: settings that learn
        more in ten minutes [book]
    batch_size: examples in a step: sentence pairs or sequences [512; 64 in
        learn]
    grow_batch: share of the run with smaller batches: an eighth, a quarter
        and half of batch_size, for a third of this share each [0.0]
    accumulate: number of parts in which a batch is computed, to save
        memory (gradient accumulation) [1]
    num_steps: training steps [50; 4000 in learn]
    minutes: training time in minutes, instead of num_steps; learning rate
        and batch size then follow the clock
    lr: highest learning rate of Adam [0.01; 0.0015 in learn]
    warmup: share of the run in which the learning rate rises [0.0; 0.1 in
        learn]
    decay: none, linear or cosine: how the learning rate falls [none;
        linear in learn]
    nsp_weight: weight of the NSP loss in the sum of the losses [1.0]
    weight_decay: decoupled weight decay, as in AdamW [0.0; 0.3 in learn]
    clip: largest norm of the gradient; 0: no limit [0.0; 1.0 in learn]
    average: decay of an exponential moving average of the weights, for
        example 0.999; the average is evaluated and saved; 0: no average
        [0.0]
    initializer: initial weights: xavier, normal, mimetic (tokens first
        attend to tokens like themselves) or topical (also to tokens of the
        same topics) [xavier; topical in learn]
    seed: seed of all random numbers (a new one for each run)

    The teacher:

    teacher: learn from this model (distillation): a run, or the folder of
        a pretrained model. Tokenizer, architecture and sizes that are not
        given are those of the teacher, with half as many layers
    temperature: divide the scores of teacher and student by this number
        before comparing them [2.0]
    soft_weight: weight of the loss against the predictions of the teacher
        [5.0]
    mlm_weight: weight of the MLM loss beside the losses of the teacher
        [2.0]
    cosine_weight: weight of the cosine loss between the last hidden states
        of teacher and student [1.0]

    The run:

    log_interval: steps between two log entries; if not given, a run of
        num_steps=20 or more has at least 20 entries [1; 100 in learn]
    eval_every: steps between two evaluations on held-out text
    save_every: steps between two checkpoints; 0: no checkpoints (if not
        given: one every five minutes, of which the last is kept)
    keep: number of checkpoints of save_every to keep, the last ones; 0:
        all [3]
    """

def finetune(
    task: Any = None,
    data: Optional[PathLike] = None,
    model: Any = None,
    out: Optional[PathLike] = None,
    force: bool = False,
    resume: Optional[PathLike] = None,
    devices: Any = 'auto',
    seeds: int = 1,
    train: Optional[Sequence] = None,
    valid: Optional[Sequence] = None,
    callback: Optional[Callable[[dict], Any]] = None,
    *,
    columns: Optional[str] = None,
    num_examples: Optional[int] = None,
    precision: Literal['fp32', 'bf16'] = 'fp32',
    max_len: int = 128,
    stride: int = 64,
    num_epochs: int = 3,
    batch_size: int = 32,
    accumulate: int = 1,
    lr: float = 5e-05,
    warmup: float = 0.1,
    decay: Literal['none', 'linear', 'cosine'] = 'linear',
    weight_decay: float = 0.01,
    clip: float = 1.0,
    bucket: int = 1,
    seed: Optional[int] = None,
    log_interval: int = 10,
    save_every: Optional[int] = None,
    keep: int = 3,
) -> pathlib.Path:
    """Fine-tune a pretrained model; returns the path of the run folder.

    task: a name in `TASKS` (tasks/catalog.py). data: the folder with the
    task's files. Without it, the task 'snli' downloads SNLI. model: a folder
    as for `load_model`, but not a run of `finetune`; or the book's
    'bert.small' or 'bert.base'; or a model in memory: a `TextModel`, a pair
    (net, tokenizer), or a net that has an attribute `vocab`. The run trains a
    copy of a model in memory.

    train, valid: examples in memory in place of `data`, both or neither. Each
    is (texts, labels) or (texts, second texts, labels), in lists, arrays or
    columns of a table.
    The first argument may then be the model: `finetune(model, train=(texts,
    labels), valid=(texts, labels))`; with a task, give both by name:
    `finetune(task='regress', model=model, ...)`. If no task is given, it is
    'regress' for labels of type float, Python's or NumPy's, 'tag' for lists of
    tags, and otherwise 'classify', with str(label) as the names of the
    classes. The examples are written to the subfolder `data` of the run
    folder.

    Each epoch ends with an evaluation on the held-out examples: `valid`, or
    the development part of `data`. The weights of the epoch with the highest
    value of the task's first metric are saved.

    out, force, resume, devices and callback are as for `pretrain`. seeds:
    number of runs with consecutive seeds. Two or more are in subfolders of
    the returned folder, and metrics are reported as mean ± standard deviation.

    The task:

    task: the task: sst2, cola, mrpc, qqp, stsb, qnli, rte, wnli, mnli,
        snli, swag, classify, regress, tag, span; the last four are for
        files of your own
    data: folder with the files of the task, for example train.tsv and
        dev.tsv (snli can be fetched)
    columns: the columns of a table, by name or by number from 0:
        text=1,label=0 or premise,hypothesis,label
    num_examples: train on the first N examples only

    The model:

    model: the model to fine-tune: the folder of a released checkpoint or
        of a run of pretrain; the book's bert.small or bert.base
    precision: fp32 or bf16: number format of matrix products [fp32]
    max_len: largest number of tokens in a text, a pair or a window over a
        long text, special tokens included [128]
    stride: tokens between the beginnings of two windows over a text that
        is searched for an answer [64]

    The training:

    num_epochs: number of passes over the training data [3]
    batch_size: examples in a step [32]
    accumulate: number of parts in which a batch is computed, to save
        memory (gradient accumulation) [1]
    lr: highest learning rate of Adam [5e-05]
    warmup: share of the run in which the learning rate rises [0.1]
    decay: none, linear or cosine: how the learning rate falls [linear]
    weight_decay: decoupled weight decay, as in AdamW [0.01]
    clip: largest norm of the gradient; 0: no limit [1.0]
    bucket: number of batches whose examples are sorted by length together,
        which saves time where padding is computed; 1: no sorting [1]
    seed: seed of all random numbers (a new one for each run)

    The run:

    log_interval: steps between two log entries [10]
    save_every: steps between two checkpoints; 0: no checkpoints (if not
        given: one every five minutes, of which the last is kept)
    keep: number of checkpoints of save_every to keep, the last ones; 0:
        all [3]
    """
