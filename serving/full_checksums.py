"""Does an engine hold the weights of a folder? Compares what it says of its memory with what the folder must give."""

import asyncio
from pathlib import Path

import structlog

from core.errors import CorruptArtefact
from serving.engines.base import WeightControl
from serving.hotswap import reading_artefact
from serving.weights.engine_checksums import compare_checksums, expected_checksums, ranks
from serving.weights.wire import FullWeights

log = structlog.get_logger(__name__)

_MOST_KEPT = 8
"""Expected checksums kept in memory; making them reads a whole folder."""


class FullChecksums:
    """Expected checksums of folders, and those that engines of unknown layout have shown after a passed probe."""

    def __init__(self, *, dtype: str | None) -> None:
        """``dtype``: what engines are started with; None: engines whose digests are not vLLM's."""
        self._dtype = dtype
        self._expected: dict[str, dict[str, str] | None] = {}
        self._shown: dict[str, dict[str, str]] = {}
        self._unknown: set[str] = set()

    async def expected(self, weights: FullWeights) -> dict[str, str] | None:
        """What an engine with these weights must answer; None: unknown layout. Raises as ``reading_artefact``."""
        if self._dtype is None:
            return None
        if weights.checksum not in self._expected:
            while len(self._expected) >= _MOST_KEPT:
                self._expected.pop(next(iter(self._expected)))
            with reading_artefact(Path(weights.path)):
                self._expected[weights.checksum] = await asyncio.to_thread(
                    expected_checksums, Path(weights.path), dtype=self._dtype
                )
        return self._expected[weights.checksum]

    async def holds(self, engine: WeightControl, weights: FullWeights) -> bool:
        """Whether the engine surely holds these weights; False also where that cannot be told."""
        found = await engine.weight_checksums()
        expected = await self.expected(weights)
        if expected is None or ranks(found) != 1:
            return found == self._shown.get(weights.checksum)
        return compare_checksums(expected, found).equal

    async def verify(self, engine: WeightControl, weights: FullWeights, before: dict[str, str]) -> str:
        """Raise CorruptArtefact unless the engine holds these weights; what the identity rests on, in plain words.

        ``before``: the engine's checksums before they were applied, when other weights were there; empty: not known.
        """
        found = await engine.weight_checksums()
        expected = await self.expected(weights)
        if expected is None or ranks(found) != 1:
            return self._by_reference(engine, weights, before, found)
        compared = compare_checksums(expected, found)
        if not compared.equal:
            what = f"'{compared.wrong[0]}' is wrong" if compared.wrong else "it told none that could be compared"
            raise CorruptArtefact(
                f"{engine_name(engine)} does not hold '{weights.label}': of {len(expected)} checksums "
                f"{len(compared.wrong)} are not the folder's; {what}"
            )
        return f"{compared.compared} checksums are the folder's"

    def _by_reference(
        self, engine: WeightControl, weights: FullWeights, before: dict[str, str], found: dict[str, str]
    ) -> str:
        """For layouts that are not known here, or weights in shards: another engine is the reference, if one was."""
        self._unknown.add(weights.checksum)
        shown = self._shown.get(weights.checksum)
        if shown is not None and found != shown:
            raise CorruptArtefact(
                f"{engine_name(engine)} does not hold '{weights.label}' as a replica did that passed its probe"
            )
        if shown is None and found == before:
            raise CorruptArtefact(f"{engine_name(engine)} holds the same weights as before '{weights.label}'")
        if shown is None:
            return "checksums differ from those before; none are known for this layout"
        return "checksums are those of a replica that passed its probe"

    async def proven(self, engine: WeightControl, weights: FullWeights) -> None:
        """Take an engine's checksums as these weights' from now on: its probe has passed with this very folder."""
        if weights.checksum in self._unknown and weights.checksum not in self._shown:
            self._shown[weights.checksum] = await engine.weight_checksums()


def engine_name(engine: object) -> str:
    """An engine's address, for messages."""
    return str(getattr(engine, "url", "the engine"))
