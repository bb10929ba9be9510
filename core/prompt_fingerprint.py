"""Prompt fingerprints: whether two Tasks ask the same, whatever case, spacing and closing punctuation. Pure."""

import hashlib
import json
import unicodedata

from core.message import Message
from core.task import Task

_TRIMMED = ".,;:!?\"'`()[]{}…«»“”\u2018\u2019"
"""Marks that say nothing at a word's edge. Operators stay: ``2 + 2`` and ``2 - 2`` are different questions."""


def normalised(text: str) -> str:
    """``text`` in compatibility form, without case, runs of spaces, and marks at the edges of words."""
    words = (word.strip(_TRIMMED) for word in unicodedata.normalize("NFKC", text).casefold().split())
    return " ".join(word for word in words if word)


def prompt_fingerprint(task: Task) -> str:
    """A digest of what is asked: the user's messages after normalisation, and the files.

    The system message and the limits are not part of it: the same question under another system message is a
    near-duplicate.
    """
    asked = [normalised(_text(message)) for message in task.messages if message.get("role") == "user"]
    files = sorted((path, normalised(text)) for path, text in task.files.items())
    return hashlib.sha256(json.dumps([asked, files], ensure_ascii=False).encode()).hexdigest()


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return json.dumps(content, sort_keys=True, ensure_ascii=False)
