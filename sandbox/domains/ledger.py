"""Domain ``ledger``: several tool calls on files of the box, whose first path may lead astray.

The policy is told of a file that is not where it says; ``files list`` shows where it is. It reads the accounts, moves
money between them in the order given, and writes the balances back. The state is in the files alone.
"""

import json
import random

from core.message import Message
from core.task import Domain, Limits, Split, Task, ToolSpec, VerifierSpec, make_task
from sandbox.domains.base import draw_distinct, generator, pool
from sandbox.domains.words import WORDS

NAME = "ledger"
SYSTEM_PROMPT = (
    "Work with the files tool, one call at a time. When a call fails, look what there is and try again. "
    "Answer 'done' when every file is written."
)
RESULT = "balances.txt"
LIMITS = Limits(max_turns=12, max_tokens=256, wall_seconds=180.0)
_MIN_CALLS = 3


class LedgerDomain:
    """Names of accounts are dealt to the splits by hash."""

    def domain(self) -> Domain:
        """The Domain, as it is registered in the store."""
        return Domain(
            name=NAME,
            kind="tool_call",
            description="Find, read, change and write account files by several calls of the files tool.",
            margin=0.03,
        )

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """``count`` different Tasks; the same for the same arguments."""
        randomness = generator(NAME, split, seed)
        names = pool(WORDS, split)
        return draw_distinct(NAME, count, lambda place: _task(randomness, names, split, moved=place % 2 == 0))


def _task(randomness: random.Random, names: list[str], split: Split, *, moved: bool) -> Task:
    accounts = randomness.sample(names, 3)
    before = {name: randomness.randint(10, 99) for name in accounts}
    transfers = []
    after = dict(before)
    for _ in range(randomness.randint(2, 3)):
        source, target = randomness.sample(accounts, 2)
        amount = randomness.randint(1, 9)
        transfers.append(f"move {amount} from {source} to {target}")
        after[source] -= amount
        after[target] += amount
    where = "archive" if moved else "accounts"
    files = {f"{where}/{name}.json": json.dumps({"balance": balance}) for name, balance in before.items()}
    user: Message = {
        "role": "user",
        "content": (
            f"The accounts {', '.join(accounts)} are files accounts/NAME.json (look around if they are not). "
            f"In this order: {'; '.join(transfers)}. Then write {RESULT} with one line 'NAME BALANCE' "
            f"for each account in the order in which I named them."
        ),
    }
    return make_task(
        domain=NAME,
        split=split,
        messages=({"role": "system", "content": SYSTEM_PROMPT}, user),
        tools=(ToolSpec(name="files"),),
        verifiers=(
            VerifierSpec(
                name="file_content",
                options={
                    "expected": {RESULT: "\n".join(f"{name} {after[name]}" for name in accounts)},
                    "min_calls": _MIN_CALLS,
                },
            ),
        ),
        limits=LIMITS,
        files=files,
        metadata={"moved": moved, "transfers": len(transfers)},
    )
