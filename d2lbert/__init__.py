"""The BERT chapters of *Dive into Deep Learning* on MXNet 1.9.1/Gluon.

`import d2lbert as d2l` stands in for the book's own `d2l` package. The names
below stand in the order in which the pages introduce them.
"""
import importlib.util
import os
import signal
import sys
import warnings

from d2lbert._version import __version__  # noqa: F401


def _stopped_early(*_):
    os.write(2, b'\nstopped\n')
    os._exit(130)


# The command imports for seconds, and Ctrl-C must not show where it was.
# '-m' is what argv holds while `python -m d2lbert` imports the package.
_early = (os.path.basename(''.join(sys.argv[:1])) in ('d2lbert', '-m')
          and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
if _early:
    signal.signal(signal.SIGINT, _stopped_early)

try:
    from d2lbert import _mxnet
except ImportError as error:
    # `d2lbert doctor` must run where MXNet cannot, to say what is wrong
    _reason = str(error)
    warnings.warn(f'd2lbert cannot work yet: {_reason}', stacklevel=2)

    def __getattr__(name):
        if (name.startswith('_')
                or importlib.util.find_spec(f'{__name__}.{name}')):
            raise AttributeError(name)      # a module, or what import asks
        raise ImportError(_reason)
else:
    _mxnet.npx.set_np()

    from d2lbert.progress import (  # noqa: F401
        Accumulator, Animator, Timer)
    from d2lbert.devices import try_all_gpus, try_gpu  # noqa: F401
    from d2lbert.hub import (  # noqa: F401
        DATA_HUB, DATA_URL, download, download_extract)
    from d2lbert.text import Vocab, count_corpus, tokenize  # noqa: F401
    from d2lbert.attention import (  # noqa: F401
        DotProductAttention, MultiHeadAttention, masked_softmax,
        transpose_output, transpose_qkv)
    from d2lbert.transformer import (  # noqa: F401
        AddNorm, EncoderBlock, PositionalEncoding, PositionWiseFFN,
        TransformerEncoderBlock)
    from d2lbert.bert import (  # noqa: F401
        BERTEncoder, BERTModel, MaskLM, NextSentencePred,
        get_tokens_and_segments)
    from d2lbert.bert_dataset import (  # noqa: F401
        _get_mlm_data_from_tokens, _get_next_sentence,
        _get_nsp_data_from_paragraph, _pad_bert_inputs, _read_wiki,
        _replace_mlm_tokens, _WikiTextDataset, get_dataloader_workers,
        load_data, load_data_wiki)
    from d2lbert.bert_pretraining import (  # noqa: F401
        _get_batch_bert, _get_batch_loss_bert, get_bert_encoding, train_bert)
    from d2lbert.corpus import open_corpus
    from d2lbert.objectives.evaluation import evaluate
    from d2lbert.training.runs import load_run
    from d2lbert.training.pretraining import pretrain

if _early:
    signal.signal(signal.SIGINT, signal.default_int_handler)
