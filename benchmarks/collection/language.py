"""Small transformers for text and speech, by the configurations of the transformers library."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.collection.entry import Entry, answering

if TYPE_CHECKING:
    import torch

TOKENS = 64
SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}

WIDTHS = {"n_embd": 256, "n_layer": 4, "n_head": 4}
DISTILLED = {"dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024}
OPT = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "ffn_dim": 1024,
    "word_embed_proj_dim": 256,
}
ONCE = {"use_cache": False}

# Configuration class, model class, options, and the shape of the input: tokens (none), or samples of a signal.
MODELS: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...] | None]] = {
    "bert": ("BertConfig", "BertModel", SMALL, None),
    "roberta": ("RobertaConfig", "RobertaModel", SMALL, None),
    "electra": ("ElectraConfig", "ElectraModel", {**SMALL, "embedding_size": 128}, None),
    "albert": ("AlbertConfig", "AlbertModel", {**SMALL, "embedding_size": 128}, None),
    "distilbert": ("DistilBertConfig", "DistilBertModel", DISTILLED, None),
    "mobilebert": ("MobileBertConfig", "MobileBertModel", {"num_hidden_layers": 4}, None),
    "squeezebert": ("SqueezeBertConfig", "SqueezeBertModel", {**SMALL, "embedding_size": 256}, None),
    "gpt2": ("GPT2Config", "GPT2Model", {**WIDTHS, **ONCE}, None),
    "opt": ("OPTConfig", "OPTModel", {**OPT, **ONCE}, None),
    "llama": ("LlamaConfig", "LlamaModel", {**SMALL, **ONCE, "vocab_size": 8000}, None),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2Model", {**SMALL, "num_conv_pos_embeddings": 16}, (1, 8000)),
    "audio_spectrogram": ("ASTConfig", "ASTModel", {**SMALL, "max_length": 256}, (1, 256, 128)),
}


def build(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import torch
    import transformers

    configuration, model, options, shape = MODELS[name]
    settings = getattr(transformers, configuration)(**options, attn_implementation="eager")
    module = getattr(transformers, model)(settings)
    if shape:
        return answering(module, lambda network, signal: network(signal)[0]), (torch.randn(shape),)
    # Without a mask of its own the library looks in the tokens' positions for several texts in a row.
    mask = torch.ones(1, TOKENS, dtype=torch.int64)
    return answering(module, lambda network, tokens: network(tokens, attention_mask=mask)[0]), (
        torch.randint(0, 1000, (1, TOKENS)),
    )


ENTRIES = [Entry(f"text_{name}", partial(build, name)) for name in MODELS]
