"""What every script of this folder shares: where to connect, and one JSON line on stdout per scenario.

The scripts run in ``.venv-clients`` and know nothing of Hone but its URL, a key and a model's name.
"""

import asyncio
import contextlib
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

WEATHER = {"Ulm": "rain", "Bonn": "sun"}
CITY_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(WEATHER)}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = "What is the weather in Ulm?"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG image of one pixel, in base64."""


@dataclass(frozen=True)
class Place:
    """Where a scenario connects."""

    url: str
    """The gateway, without ``/v1``."""
    key: str
    model: str

    @property
    def base_url(self) -> str:
        """What OpenAI clients want."""
        return f"{self.url}/v1"


@dataclass(frozen=True)
class Calls:
    """What a scenario has asked for, to be compared with what was recorded."""

    count: int
    surface: str = "chat.completions"


Scenario = Callable[[Place], Any]


def run(package: str, *scenarios: Scenario) -> None:
    """Run the scenarios in order, each with its own key; a failed one does not end the others."""
    setting = json.loads(os.environ["HONE_CLIENT_TEST"])
    for scenario in scenarios:
        name = scenario.__name__
        if name not in setting["keys"]:
            continue
        place = Place(url=setting["url"], key=setting["keys"][name], model=setting["model"])
        line: dict[str, Any] = {"scenario": name, "package": package, "version": version(package)}
        started = time.monotonic()
        try:
            # Some clients print; stdout is for the lines alone.
            with contextlib.redirect_stdout(sys.stderr):
                calls = asyncio.run(scenario(place)) if inspect.iscoroutinefunction(scenario) else scenario(place)
            line |= {"ok": True, "calls": calls.count, "surface": calls.surface}
        except Exception:
            line |= {"ok": False, "error": traceback.format_exc()}
        line["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps(line), flush=True)
