"""The one door to LiteLLM: imported at the first use, told to do nothing but the call itself."""

import asyncio
import logging
import sys
import time
from typing import Any

import structlog

from core.config.load import keep_litellm_offline

log = structlog.get_logger(__name__)


class Library:
    """LiteLLM, once it is there. The import takes seconds, so it runs in a thread and once."""

    def __init__(self) -> None:
        self._module: Any = None
        self._loading = asyncio.Lock()

    @property
    def loaded(self) -> Any:
        """The module; None before the first use."""
        return self._module

    async def load(self) -> Any:
        """The module. Raises ImportError where it is not installed."""
        if self._module is None:
            async with self._loading:
                if self._module is None:
                    self._module = await asyncio.to_thread(_import)
        return self._module

    async def close(self) -> None:
        """Close the connections and the worker that LiteLLM keeps for this process."""
        module = self._module
        if module is None:
            return
        self._module = None
        await module.close_litellm_async_clients()
        module.in_memory_llm_clients_cache.flush_cache()
        worker = sys.modules.get("litellm.litellm_core_utils.logging_worker")
        if worker is not None:
            await worker.GLOBAL_LOGGING_WORKER.stop()


def _import() -> Any:
    started = time.perf_counter()
    keep_litellm_offline()
    import litellm  # noqa: PLC0415 - heavy: only where an outside model is asked

    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    litellm.disable_streaming_logging = True
    litellm.drop_params = False
    litellm.num_retries = 0
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        # Its records hold what was said, and every failure is logged on this side anyway.
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    log.info("litellm_loaded", seconds=round(time.perf_counter() - started, 2))
    return litellm
