"""Counters in Redis, one Lua script a step; the time is Redis's own, so replicas' clocks do not matter.

A window is a hash of bucket → amount. A hold is a hash of replica → ``amount:until`` (milliseconds) with one more
field for the used part. Counters of one call share a hash tag, so they lie in one slot of a Redis Cluster.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog

from core import ids
from core.errors import StoreError
from store.counters import (
    COUNTED_BUCKETS,
    HOLD_SECONDS,
    LEASE_BUCKETS,
    SPARE_SHARE,
    Ask,
    Change,
    Grant,
    Reservation,
)
from store.redis_client import redis_client

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 0.5
"""Longest wait for Redis: a request may wait for it."""
_PREFIX = "hone:limits:"
_REPLICAS = _PREFIX + "replicas"
_MONTH_SECONDS = 40 * 86_400
"""How long an unused hold is remembered: longer than any budget's month."""

_COMMON = f"""
local COUNTED, SPARE, LEASE = {COUNTED_BUCKETS}, {SPARE_SHARE}, {LEASE_BUCKETS}
local HOLD_MS, KEEP = {int(HOLD_SECONDS * 1000)}, {_MONTH_SECONDS}
local time = redis.call('TIME')
local bucket = tonumber(time[1])
local now = bucket * 1000 + math.floor(tonumber(time[2]) / 1000)
local function int(value) return string.format('%d', value) end
local function give_back(key, at, amount)
  if at <= bucket - COUNTED or at > bucket then return end
  local old = redis.call('HGET', key, int(at))
  if not old and amount > 0 then return end
  redis.call('HSET', key, int(at), int(math.max(0, (tonumber(old or '0')) - amount)))
  redis.call('EXPIRE', key, COUNTED + 2)
end
local function part(value)
  local held, til = string.match(value, '^(%d+):(%d+)$')
  return tonumber(held), tonumber(til)
end
local function hold(key, replica, amount)
  local value = redis.call('HGET', key, replica)
  local held = math.max(0, (value and part(value) or 0) + amount)
  if held > 0 then redis.call('HSET', key, replica, int(held) .. ':' .. int(now + HOLD_MS))
  else redis.call('HDEL', key, replica) end
  redis.call('EXPIRE', key, KEEP)
end
local function raise(key, used)
  redis.call('HSET', key, 'used', int(used))
  redis.call('EXPIRE', key, KEEP)
end
"""

_RESERVE = (
    _COMMON
    + """
local function window_free(key, limit, need)
  local fields = redis.call('HGETALL', key)
  local live, sum = {}, 0
  for i = 1, #fields, 2 do
    local at, amount = tonumber(fields[i]), tonumber(fields[i + 1])
    if at <= bucket - COUNTED then redis.call('HDEL', key, fields[i])
    else sum = sum + amount; live[#live + 1] = {at, amount} end
  end
  local free, retry = limit - sum, 0
  if free < need then
    table.sort(live, function(a, b) return a[1] < b[1] end)
    retry = -1
    local later = free
    for _, entry in ipairs(live) do
      later = later + entry[2]
      if later >= need then retry = (entry[1] + COUNTED) * 1000 - now; break end
    end
  end
  return free, retry
end
local function hold_free(key, limit, floor)
  local fields = redis.call('HGETALL', key)
  local held, used = 0, 0
  for i = 1, #fields, 2 do
    if fields[i] == 'used' then used = tonumber(fields[i + 1])
    else
      local amount, til = part(fields[i + 1])
      if til <= now then redis.call('HDEL', key, fields[i]) else held = held + amount end
    end
  end
  if floor > used then used = floor; raise(key, used) end
  return limit - used - held
end
local replica = ARGV[1]
local asks, granted = {}, true
for i, key in ipairs(KEYS) do
  local at = 2 + (i - 1) * 7
  local ask = {kind = ARGV[at], limit = tonumber(ARGV[at + 1]), need = tonumber(ARGV[at + 2]),
    want = tonumber(ARGV[at + 3]), retry = 0}
  local back, back_bucket, floor = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  if ask.kind == 'window' then
    if back > 0 then give_back(key, back_bucket, back) end
    ask.free, ask.retry = window_free(key, ask.limit, ask.need)
  else ask.free = hold_free(key, ask.limit, floor) end
  if ask.free < ask.need then granted = false end
  asks[i] = ask
end
local answer = {granted and 1 or 0, bucket, (bucket + LEASE) * 1000 - now}
for i, key in ipairs(KEYS) do
  local ask, amount = asks[i], 0
  if granted then
    amount = ask.need + math.max(0, math.min(ask.want - ask.need, math.floor((ask.free - ask.need) / SPARE)))
    if ask.kind == 'window' then
      redis.call('HINCRBY', key, int(bucket), int(amount))
      redis.call('EXPIRE', key, COUNTED + 2)
    else hold(key, replica, amount) end
  end
  answer[#answer + 1] = amount
  answer[#answer + 1] = math.max(0, ask.free - amount)
  answer[#answer + 1] = ask.retry
end
return answer
"""
)

_CHANGE = (
    _COMMON
    + """
local key, replica, kind = KEYS[1], ARGV[1], ARGV[2]
local held, used, back, at = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if kind == 'window' then give_back(key, at, back)
else
  if used ~= 0 then raise(key, math.max(0, tonumber(redis.call('HGET', key, 'used') or '0') + used)) end
  hold(key, replica, held)
end
"""
)

_BEAT = (
    _COMMON
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now))
redis.call('ZADD', KEYS[1], int(now + HOLD_MS), ARGV[1])
redis.call('EXPIRE', KEYS[1], KEEP)
return redis.call('ZCARD', KEYS[1])
"""
)


class RedisCounters:
    """Implements ``store.counters.Counters``."""

    def __init__(self, url: str) -> None:
        self._client, self._transport_errors = redis_client(url, answer_seconds=ANSWER_SECONDS)
        self._replica = ids.new_id(ids.REPLICA)
        self._reserve = self._client.register_script(_RESERVE)
        self._change = self._client.register_script(_CHANGE)
        self._beat = self._client.register_script(_BEAT)

    async def reserve(self, asks: Sequence[Ask]) -> Reservation:
        """See ``store.counters.Counters``."""
        arguments: list[str | int] = [self._replica]
        for ask in asks:
            arguments += [ask.kind.value, ask.limit, ask.need, ask.want, ask.back, ask.back_bucket, ask.floor]
        with self._failures():
            answer = await self._reserve(keys=[_PREFIX + ask.counter for ask in asks], args=arguments)
        granted, bucket, fresh_ms, *rest = answer
        triples = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
        grants = tuple(
            Grant(amount, left, math.inf if retry < 0 else retry / 1000) for amount, left, retry in triples
        )
        return Reservation(grants, bool(granted), bucket, fresh_ms / 1000)

    async def change(self, changes: Sequence[Change]) -> None:
        """See ``store.counters.Counters``."""
        if not changes:
            return
        with self._failures():
            async with self._client.pipeline(transaction=False) as pipeline:
                for change in changes:
                    await self._change(
                        keys=[_PREFIX + change.counter],
                        args=[
                            *(self._replica, change.kind.value, change.held, change.used),
                            *(change.back, change.bucket),
                        ],
                        client=pipeline,
                    )
                await pipeline.execute()

    async def beat(self) -> int:
        """See ``store.counters.Counters``."""
        with self._failures():
            return int(await self._beat(keys=[_REPLICAS], args=[self._replica]))

    def reborn(self) -> None:
        """See ``store.counters.Counters``."""
        self._replica = ids.new_id(ids.REPLICA)

    async def close(self) -> None:
        """See ``store.counters.Counters``."""
        try:
            await self._client.zrem(_REPLICAS, self._replica)
        except self._transport_errors as error:
            log.info("replica_not_removed", error=str(error))
        await self._client.aclose()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except self._transport_errors as error:
            raise StoreError(f"Redis does not answer: {error}", hint="limits are local until it does") from error
