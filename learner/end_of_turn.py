"""The token that ends an assistant's turn, as a Base's chat template writes it."""

from typing import Any

_MARK = "the answer ends here"


def end_of_turn(tokenizer: Any) -> int:
    """The special token right behind an assistant message in the chat template; else the tokenizer's end of text.

    The two differ where a Base's chats end in a token of their own, such as ``<|eot_id|>``.
    """
    if not getattr(tokenizer, "chat_template", None):
        return int(tokenizer.eos_token_id)
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _MARK}]
    _, found, behind = str(tokenizer.apply_chat_template(messages, tokenize=False)).rpartition(_MARK)
    ids = tokenizer.encode(behind.lstrip(), add_special_tokens=False) if found else []
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return int(ids[0]) if ids and ids[0] in special else int(tokenizer.eos_token_id)
