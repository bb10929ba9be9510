"""Suites and what versions did on them: list, show, compare, run."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from core.errors import InvalidRequest
from core.job import Job
from core.suite import Suite, SuiteResult
from core.suite_summary import DomainComparison, DomainSummary, compare_results, summarise
from core.variant import Variant
from gateway.admin.schemas import Body, VersionNumber
from gateway.callers import ID_PATTERN, LONGEST_ID, PathId, QueryId
from gateway.dependencies import FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts, Reader, Writer

router = APIRouter(tags=["Suites"])

RUN_SUITE = "run_suite"
ResultId = Annotated[str, Query(max_length=LONGEST_ID, pattern=ID_PATTERN)]
"""A SuiteResult to compare."""


class NewSuiteRun(Body):
    """Which Suite to run on what."""

    suite: str = Field(min_length=1, max_length=200)
    policy: str = Field(min_length=1, max_length=200)
    version: VersionNumber
    variant: Variant = Variant.STANDARD


class SuiteResultView(Body):
    """A SuiteResult with its summaries."""

    result: SuiteResult
    summaries: list[DomainSummary]


class ResultLine(Body):
    """A SuiteResult without its attempts."""

    id: str
    suite: str
    suite_version: int
    policy: str
    version: int
    variant: str
    status: str
    made: int
    planned: int


@router.get("/suites", summary="List Suites", responses=READ_ERRORS)
async def list_suites(gateway: GatewayParts, _key: Reader) -> list[Suite]:
    """The newest version of each."""
    async with gateway.store.reading() as work:
        return await work.suites.list()


@router.get("/suite-results", summary="List SuiteResults", responses=READ_ERRORS)
async def list_results(
    gateway: GatewayParts,
    _key: Reader,
    policy: QueryId = None,
    version: VersionNumber | None = None,
    suite: QueryId = None,
) -> list[ResultLine]:
    """Newest first, those under way too."""
    async with gateway.store.reading() as work:
        found = await work.suite_results.list(policy, version, suite)
    return [_line(one) for one in found]


@router.get("/suite-results/compare", summary="Compare two SuiteResults", responses=FIND_ERRORS)
async def compare(
    gateway: GatewayParts, _key: Reader, candidate: ResultId, baseline: ResultId
) -> list[DomainComparison]:
    """Paired differences per Domain of two results of one Suite."""
    async with gateway.store.reading() as work:
        ours, theirs = await work.suite_results.get(candidate), await work.suite_results.get(baseline)
    try:
        return compare_results(ours, theirs)
    except ValueError as error:
        raise InvalidRequest(str(error), param="baseline", hint="name two results of one Suite") from error


@router.get("/suite-results/{result_id}", summary="Show a SuiteResult", responses=FIND_ERRORS)
async def show_result(gateway: GatewayParts, _key: Reader, result_id: PathId) -> SuiteResultView:
    """With success, tool calls, stability, recovery, length, cost and latency per Domain."""
    async with gateway.store.reading() as work:
        result = await work.suite_results.get(result_id)
    return SuiteResultView(result=result, summaries=summarise(result))


@router.post("/suite-results", summary="Run a Suite", status_code=202, responses=WRITE_ERRORS)
async def run_suite(gateway: GatewayParts, _key: Writer, body: NewSuiteRun) -> Job:
    """Queue a job of kind `run_suite`; its result names the SuiteResult."""
    async with gateway.store.reading() as work:
        suite = await work.suites.get(body.suite)
        if body.version:
            await work.versions.get(body.policy, body.version)
        else:
            await work.policies.get(body.policy)
    if not suite.scored:
        raise InvalidRequest(
            f"Suite '{suite.name}' has prompts without verifiers", hint="use it as shadow or judge prompts"
        )
    payload: dict[str, Any] = body.model_dump(mode="json") | {"suite_version": suite.version}
    return await gateway.store.queue.enqueue(RUN_SUITE, payload)


def _line(one: SuiteResult) -> ResultLine:
    fields = {name: getattr(one, name) for name in ResultLine.model_fields if name != "made"}
    return ResultLine(made=len(one.attempts), **fields)
