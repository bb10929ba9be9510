"""Scores Turns anew with the weights of the versions that they name, and with their neighbours':
``python -m bench.hotswap.rescore``.

A process of its own, with torch. Reads and writes JSON: see ``Piece`` and ``Scored``.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from bench.hotswap.weights import Judge

WRONG_ABOVE = 0.02
"""Mean |recorded - judged| in nats above which a piece was not sampled by the version that it names."""
CLEAR_ABOVE = 4 * WRONG_ABOVE
"""Distance to the neighbour from which a version can be told apart."""


@dataclass(frozen=True)
class Piece:
    """A run of one Turn's sampled tokens that one version is said to have produced."""

    turn_id: str
    version: int
    neighbour: int
    """Another version, which would show."""
    tokens: list[int]
    """Prompt and answer, up to the end of the run."""
    first: int
    """Index of the run's first token in ``tokens``."""
    logprobs: list[float]
    """As recorded, of the tokens from ``first``."""


@dataclass(frozen=True)
class Scored:
    """How far the record is from what the weights say, in nats a token."""

    turn_id: str
    version: int
    tokens: int
    error: float
    neighbour_error: float

    @property
    def wrong(self) -> bool:
        """Another version answered: the record is not what this version says, or is nearer to the neighbour."""
        return self.error > WRONG_ABOVE or self.error > self.neighbour_error

    @property
    def clear(self) -> bool:
        """The neighbour would have shown."""
        return self.neighbour_error >= CLEAR_ABOVE


def rescore(judge: Judge, folders: dict[int, Path | None], pieces: Sequence[Piece]) -> list[Scored]:
    """Every piece under both versions; weights are taken once per version."""
    errors: dict[tuple[int, int], float] = {}
    for version, folder in folders.items():
        chosen = [index for index, piece in enumerate(pieces) if version in (piece.version, piece.neighbour)]
        if not chosen:
            continue
        judge.become(folder)
        for index in chosen:
            piece = pieces[index]
            judged = judge.logprobs([piece.tokens])[0][piece.first :]
            errors[index, version] = distance(piece.logprobs, judged)
    return [
        Scored(
            piece.turn_id,
            piece.version,
            len(piece.logprobs),
            errors[index, piece.version],
            errors[index, piece.neighbour],
        )
        for index, piece in enumerate(pieces)
    ]


def distance(recorded: Sequence[float], judged: Sequence[float]) -> float:
    """Mean absolute difference of as many log-probs."""
    return fmean(abs(one - other) for one, other in zip(recorded, judged, strict=True))


def main() -> None:
    """``pieces`` holds ``folders`` (version → path, empty for the Base) and ``pieces``; ``scored`` is written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("pieces", type=Path)
    parser.add_argument("scored", type=Path)
    arguments = parser.parse_args()
    asked = json.loads(arguments.pieces.read_text())
    folders = {int(number): Path(path) if path else None for number, path in asked["folders"].items()}
    scored = rescore(Judge(arguments.base), folders, [Piece(**one) for one in asked["pieces"]])
    arguments.scored.write_text(json.dumps([asdict(one) for one in scored]))


if __name__ == "__main__":
    main()
