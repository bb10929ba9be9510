"""Measures what recording costs the gateway: ``Journal.append`` and ``Journal.write`` on calls of this very run.

    python -m bench.gateway.recording SAMPLES FOLDER RECORDS

SAMPLES holds frames of real captured calls. The difference between the CPU time of a request with and without capture
is no measure of this, because the engine's answer is eight times as large with capture. Every record is written by
itself here; a busy gateway writes all records of one turn of its event loop together, which is cheaper.
"""

import json
import sys
import time
from pathlib import Path

from gateway.capture.frames import decode_call, split_frames
from gateway.capture.journal import Journal

ROUNDS = 5


def measure(samples: bytes, folder: Path, records: int) -> dict[str, float]:
    """Process CPU time per record in microseconds, kernel included: the median of five rounds, and its range."""
    calls = [decode_call(body) for body in split_frames(samples, 1000).bodies]
    spent = []
    for number in range(ROUNDS):
        journal = Journal(folder / str(number), capacity_bytes=2**40, lost=_never)
        journal.open()
        began = time.process_time()
        for index in range(records):
            journal.append(calls[index % len(calls)])
            journal.write()
        spent.append(1e6 * (time.process_time() - began) / records)
        journal.close()
    spent.sort()
    return {"median": spent[ROUNDS // 2], "low": spent[0], "high": spent[-1], "records": records}


def _never(cause: str, turns: int) -> None:
    raise RuntimeError(f"the journal lost {turns} Turns: {cause}")


def main() -> None:
    """Print the result as JSON."""
    samples, folder, records = sys.argv[1:]
    print(json.dumps(measure(Path(samples).read_bytes(), Path(folder), int(records))))


if __name__ == "__main__":
    main()
