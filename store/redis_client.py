"""A Redis client whose every wait is bounded."""

from typing import Any

from core.errors import ConfigurationError

_HEALTH_CHECK_SECONDS = 5
"""How often a silent connection is asked whether it still stands."""


def redis_client(url: str, *, answer_seconds: float) -> tuple[Any, tuple[type[Exception], ...]]:
    """A client, and the errors that mean that Redis is away or refuses.

    Raises ConfigurationError when the package is missing or the URL is none.
    """
    try:
        # The package is an extra: who sets no store.redis_url does not need it.
        from redis.asyncio import Redis  # noqa: PLC0415
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import ConnectionError as RedisGone  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415

        client = Redis.from_url(
            url,
            socket_timeout=answer_seconds,
            socket_connect_timeout=answer_seconds,
            socket_keepalive=True,
            health_check_interval=_HEALTH_CHECK_SECONDS,
            # One retry at once: a pooled connection may be a left-over from before a restart of Redis. Not after a
            # time-out: the step may have been done.
            retry=Retry(NoBackoff(), 1, supported_errors=(RedisGone,)),
        )
    except ImportError as error:
        raise ConfigurationError(
            "store.redis_url is set and the redis package is not installed", hint="install the extra 'redis'"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"store.redis_url is no Redis URL: {error}") from error
    return client, (RedisError, OSError)
