"""Pretrained models that tests make themselves."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers


def save_roberta(folder: Path, text: str) -> Path:
    """A small RoBERTa with a tokeniser of words, as ``save_pretrained`` leaves them."""
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=names))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, cls_token="<s>", sep_token="</s>", bos_token="<s>",
        eos_token="</s>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>",
    )  # fmt: skip
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=40, type_vocab_size=1,
        initializer_range=0.5,
    )  # fmt: skip
    transformers.RobertaForMaskedLM(config).save_pretrained(folder)
    return folder
