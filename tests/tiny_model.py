"""A random 2-layer Llama with a chat tokenizer, written as a Hugging Face folder in a fraction of a second."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 128
_TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def build_tiny_base(folder: Path, *, vocabulary_size: int = VOCABULARY) -> Path:
    """Write the model and a word-level tokenizer (``w0`` …, one line per message) into ``folder``."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system", "tool"]
    words += [f"w{index}" for index in range(vocabulary_size - len(words))]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)
    return folder
