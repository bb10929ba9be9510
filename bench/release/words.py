"""What the live run's clients ask for, and how good an answer is: a word in capital letters, and nothing else."""

from collections.abc import Sequence

_TEXT = """
apple river stone cloud table horse garden window silver planet bridge candle forest market pencil rabbit
school summer ticket winter yellow basket camera doctor engine flower guitar hammer island jacket kitchen
ladder mirror needle office pepper quarter ribbon saddle temple uncle valley wagon zebra anchor bottle castle
dragon eagle feather giant honey insect jungle kettle lemon monkey nation ocean parrot queen rocket sugar
tiger umbrella village whale angel banana copper desert empire finger ground hunter infant jewel knight lizard
magnet napkin orange palace quiver robin sailor thunder uniform velvet walnut author beacon carpet dinner
elbow fabric glove helmet icicle judge kernel lantern meadow noodle orchid pillow rain shadow turtle urchin
violin wizard yogurt
"""
_WORDS = _TEXT.split()
_FORMS = (
    'Write the word "{word}" in capital letters. Answer with the word alone.',
    "What is '{word}' in capital letters? Say only the word.",
    "Turn {word} into capital letters and answer with that one word.",
)
_TRAINING = 60
"""Words that only training sees."""


def training_pairs() -> list[tuple[str, str]]:
    """Questions and right answers to learn from."""
    return _pairs(_WORDS[:_TRAINING])


def held_out() -> list[tuple[str, str]]:
    """Questions and right answers that no training saw."""
    return _pairs(_WORDS[_TRAINING:])


def score(answer: str, wanted: str) -> float:
    """1: the word in capitals, alone; 0.5: it is there somehow; 0: it is not."""
    said = answer.strip().strip("\"'.!*` ")
    if said == wanted:
        return 1.0
    return 0.5 if wanted.lower() in answer.lower() else 0.0


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return [(form.format(word=word), word.upper()) for form in _FORMS for word in words]
