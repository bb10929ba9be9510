"""``hone eval``: Suites of held-out Tasks on any version, and comparisons with a picture."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from core.config.schema import HoneConfig
from core.errors import NotFound
from core.statistics.intervals import Interval
from core.suite import Suite, SuiteResult
from core.suite_summary import DomainComparison, compare_results, summarise
from core.variant import Variant
from hone.bootstrap import migrate
from hone.forest import forest_page
from hone.opened_store import opened_store
from hone.output import clear_errors, console, table
from hone.settings import load_settings
from hone.suites import found_suite, newest_results, run_suite, store_suite
from sandbox.domains.registry import evaluated_sources
from sandbox.suite_file import suite_from_jsonl

app = typer.Typer(no_args_is_help=True, help="Suites of held-out Tasks, and what versions did on them.")

_Policy = Annotated[str, typer.Option(help="The Policy.")]
_Variant = Annotated[Variant, typer.Option(help="standard or fast.")]


@app.command("list")
@clear_errors
def list_() -> None:
    """List Suites: stored ones, and those of Hone's that are made at their first run."""
    suites = asyncio.run(_suites(load_settings()))
    rows = table("suite", "version", "tasks", "attempts", "of", "use")
    for suite in suites:
        use = "scored" if suite.scored else "shadow or judge prompts"
        owner = suite.tenant_id or "everybody"
        tasks, attempts = str(len(suite.task_ids)), str(suite.attempts * (1 + len(suite.perturbations)))
        rows.add_row(escape(suite.name), str(suite.version), tasks, attempts, escape(owner), use)
    stored = {suite.name for suite in suites}
    for source in evaluated_sources():
        name = source.domain().name
        if name not in stored:
            rows.add_row(name, "-", "-", "-", "everybody", "made when it is run")
    console().print(rows)


@app.command()
@clear_errors
def run(
    suites: Annotated[list[str], typer.Argument(help="Suites by name; 'all' for every one of Hone's.")],
    policy: _Policy,
    version: Annotated[int | None, typer.Option(min=0, help="Left out: the promoted one; 0: the Base.")] = None,
    variant: _Variant = Variant.STANDARD,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of a Suite that is made now.")] = 40,
    again: Annotated[bool, typer.Option(help="Run it although there is a result.")] = False,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds for each Suite.")] = 3600.0,
) -> None:
    """Run Suites with the running workers and show what came of them."""
    names = [one.domain().name for one in evaluated_sources()] if suites == ["all"] else suites
    results = asyncio.run(_run(load_settings(), names, policy, version, variant, tasks, again, timeout))
    for result in results:
        _show(result)


@app.command()
@clear_errors
def show(result_id: Annotated[str, typer.Argument(help="Id of the SuiteResult.")]) -> None:
    """Show a SuiteResult with intervals."""
    _show(asyncio.run(_result(load_settings(), result_id)))


@app.command()
@clear_errors
def compare(
    policy: _Policy,
    version: Annotated[int, typer.Option(min=0, help="The version in question.")],
    variant: _Variant = Variant.STANDARD,
    picture: Annotated[Path | None, typer.Option(help="Write a page with forest plots here.")] = None,
) -> None:
    """Compare a version with the promoted one and the Base, Task by Task, on all Suites that both were run on."""
    sections = asyncio.run(_compare(load_settings(), policy, version, variant))
    for name, comparisons in sections:
        rows = table("Domain", "tasks", "success", "baseline", "difference", "better/worse", "McNemar p")
        for one in comparisons:
            shares = (f"{one.success:.3f}", f"{one.baseline_success:.3f}")
            counts = f"{one.only_first}/{one.only_second}"
            rows.add_row(
                escape(one.domain), str(one.tasks), *shares, _shown(one.difference), counts, f"{one.p_value:.4f}"
            )
        console().print(escape(name))
        console().print(rows)
    if picture is not None:
        picture.write_text(forest_page(sections, title=f"{policy}@{version}"), encoding="utf-8")
        console().print(f"picture: {escape(str(picture))}")


@app.command("import")
@clear_errors
def import_(
    file: Annotated[Path, typer.Argument(help="JSONL: Tasks with verifiers, or logged prompts.")],
    suite: Annotated[str, typer.Option(help="Name; it is stored as tenant/ID/NAME.")],
    tenant: Annotated[str, typer.Option(help="Whose Tasks these are.")],
    attempts: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Store a tenant's private Tasks or logged prompts as a Suite."""
    stored = asyncio.run(_import(load_settings(), file, suite, tenant, attempts))
    use = "run it with 'hone eval run'" if stored.scored else "no verifiers: usable as shadow or judge prompts only"
    console().print(f"{escape(stored.name)}, version {stored.version}: {len(stored.task_ids)} Tasks; {use}")


async def _suites(config: HoneConfig) -> list[Suite]:
    await asyncio.to_thread(migrate, config)
    async with opened_store(config) as store, store.reading() as work:
        return await work.suites.list()


async def _result(config: HoneConfig, result_id: str) -> SuiteResult:
    async with opened_store(config) as store, store.reading() as work:
        return await work.suite_results.get(result_id)


async def _import(config: HoneConfig, file: Path, name: str, tenant: str, attempts: int) -> Suite:
    await asyncio.to_thread(migrate, config)
    made = suite_from_jsonl(file, name=name, tenant_id=tenant, attempts=attempts)
    async with opened_store(config) as store:
        async with store.reading() as work:
            await work.tenants.get(tenant)
        return await store_suite(store, made)


async def _run(
    config: HoneConfig,
    names: list[str],
    policy: str,
    version: int | None,
    variant: Variant,
    tasks: int,
    again: bool,
    seconds: float,
) -> list[SuiteResult]:
    await asyncio.to_thread(migrate, config)
    results = []
    async with opened_store(config) as store:
        async with store.reading() as work:
            found = await work.policies.get(policy)
        number = found.promoted_version if version is None else version
        for name in names:
            suite = await found_suite(store, name, tasks=tasks)
            with console().status(f"{escape(name)}: waiting for a worker") as status:
                result = await run_suite(
                    store,
                    suite,
                    policy=policy,
                    version=number,
                    variant=variant.value,
                    again=again,
                    seconds=seconds,
                    progress=lambda made, planned, name=name, status=status: status.update(  # type: ignore[misc]
                        f"{escape(name)}: {made} of {planned} attempts"
                    ),
                )
            results.append(result)
    return results


async def _compare(
    config: HoneConfig, policy: str, version: int, variant: Variant
) -> list[tuple[str, list[DomainComparison]]]:
    async with opened_store(config) as store:
        async with store.reading() as work:
            found = await work.policies.get(policy)
            suites = await work.suites.list()
        ours = await newest_results(store, policy, version, variant.value, suites)
        sections = []
        for label, other in (("promoted", found.promoted_version), ("Base", 0)):
            if other == version or (label == "Base" and found.promoted_version == 0):
                continue
            theirs = await newest_results(store, policy, other, Variant.STANDARD.value, suites)
            rows = [row for name in ours if name in theirs for row in compare_results(ours[name], theirs[name])]
            if rows:
                sections.append((f"{policy}@{version} minus {policy}@{other} ({label})", rows))
    if not sections:
        raise NotFound(
            f"no Suite was run both on {policy}@{version} and on what it is compared with",
            hint="run one on each with 'hone eval run SUITE --policy … --version …'",
        )
    return sections


def _show(result: SuiteResult) -> None:
    console().print(
        f"{result.id}: {escape(result.suite)} (version {result.suite_version}) on "
        f"{escape(result.policy)}@{result.version} {result.variant}, {result.status}"
    )
    rows = table(
        "Domain", "tasks", "success", "tool calls", "stability", "recovery", "tokens", "turns", "seconds", "bad"
    )
    for one in summarise(result):
        shares = [_shown(value) for value in (one.success, one.tool_success, one.stability, one.recovery)]
        means = [
            "-" if value is None else f"{value.mean:.1f}" for value in (one.output_tokens, one.turns, one.seconds)
        ]
        rows.add_row(escape(one.domain), str(one.tasks), *shares, *means, str(one.invalid))
    console().print(rows)


def _shown(value: Interval | None) -> str:
    return "-" if value is None else escape(f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]")
