"""The public names of `import d2lbert as d2l`."""
from d2lbert.progress import Accumulator, Animator, Timer
from d2lbert.devices import try_all_gpus, try_gpu
from d2lbert.hub import (
    DATA_HUB, DATA_URL, WIKITEXT_2_SHA1, WIKITEXT_2_URL, download,
    download_extract)
from d2lbert.text import Vocab, count_corpus, tokenize
from d2lbert.attention import (
    DotProductAttention, MultiHeadAttention, keep_attention, masked_softmax,
    transpose_output, transpose_qkv)
from d2lbert.transformer import (
    AddNorm, EncoderBlock, PositionalEncoding, PositionWiseFFN,
    TransformerEncoderBlock)
from d2lbert.bert import (
    BERTEncoder, BERTModel, MaskLM, NextSentencePred,
    get_tokens_and_segments)
from d2lbert.pretrained.families.bart import BARTModel
from d2lbert.bert_dataset import (
    _get_mlm_data_from_tokens, _get_next_sentence,
    _get_nsp_data_from_paragraph, _pad_bert_inputs, _read_wiki,
    _replace_mlm_tokens, _WikiTextDataset, get_dataloader_workers,
    load_data, load_data_wiki)
from d2lbert.bert_pretraining import (
    _get_batch_bert, _get_batch_loss_bert, get_bert_encoding, train_bert)
from d2lbert.multi_device import (
    accuracy, evaluate_accuracy_gpus, split_batch, split_batch_multi_inputs,
    train_batch_ch13, train_ch13)
from d2lbert.natural_language_inference import (
    BERTClassifier, SNLIBERTDataset, load_pretrained_model, read_snli)
from d2lbert.pretrained.encoding import encode
from d2lbert.pretrained.families.nets import bert_base, bert_large
from d2lbert.pretrained.fill_mask import Guess, fill_mask
from d2lbert.pretrained.folders import load_pretrained, save_pretrained
from d2lbert.pretrained.generation import generate
from d2lbert.pretrained.heads import FineTuned
from d2lbert.pretrained.tensor_files import PretrainedError
from d2lbert.pretrained.tokenizers.tokenizer import WholeWords, WordPiece
from d2lbert.corpus.corpus import open_corpus
from d2lbert.objectives.text_objective import evaluate
from d2lbert.nn.steps import History
from d2lbert.training.history import read_history
from d2lbert.training.load import load_finetuned, load_run
from d2lbert.training.updater import AdamW
from d2lbert.training.pretraining import pretrain
from d2lbert.training.saved_runs import RunError
from d2lbert.finetuning.tasks.catalog import TASKS, read_task
from d2lbert.finetuning.finetuning import finetune
from d2lbert.finetuning.prediction import evaluate_finetuned, predict
from d2lbert.finetuning.task_kinds import Prediction
from d2lbert.pictures.activations import plot_attention
from d2lbert.pictures.senses import plot_senses, sense_accuracy
from d2lbert.pictures.run_records import plot_history
from d2lbert.pictures.show import show
from d2lbert.text_model import Attention, Hit, TextModel, load_model

# Without `__all__`, a star import would leave out the book's names that begin
# with an underscore
__all__ = [name for name in dir() if not name.startswith('__')]
