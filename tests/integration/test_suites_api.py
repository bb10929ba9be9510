"""The admin API of Suites: list, run, show, compare."""

from core.suite import Attempt, SuiteResult
from sandbox.standard_suites import standard_suite
from tests.gateway_harness import POLICY, running_gateway


async def test_suites_are_run_shown_and_compared(database_url, open_store, make_config):
    """A run is a job; results are listed, summarised and compared; what is not there, or no id, is refused."""
    store = await open_store(database_url)
    made = standard_suite("letters", tasks=4, perturbations=())
    async with running_gateway(store, make_config, {"store.url": database_url}) as harness:
        async with store.transaction() as tx:
            await tx.tasks.add_many(made.tasks)
            await tx.suites.put_next(made.suite)
            for version, won in ((0, False), (1, True)):
                attempts = [
                    Attempt(task_id=one, domain="letters", seed=0, success=won) for one in made.suite.task_ids
                ]
                await tx.suite_results.put(
                    SuiteResult(
                        id=f"sres_{version}",
                        suite="letters",
                        suite_version=1,
                        policy=POLICY,
                        version=version,
                        attempts=tuple(attempts),
                    )
                )
        status, suites = await harness.admin("GET", "/suites")
        assert (status, [one["name"] for one in suites]) == (200, ["letters"])
        status, job = await harness.admin(
            "POST", "/suite-results", {"suite": "letters", "policy": POLICY, "version": 0}
        )
        assert (status, job["kind"], job["payload"]["suite_version"]) == (202, "run_suite", 1)
        status, _ = await harness.admin("POST", "/suite-results", {"suite": "none", "policy": POLICY, "version": 0})
        assert status == 404
        far = {"suite": "letters", "policy": POLICY, "version": 99999999999999999999}
        assert (await harness.admin("POST", "/suite-results", far))[0] == 400
        status, _ = await harness.admin("GET", "/suite-results/compare?candidate=sres_1%00&baseline=sres_0")
        assert status == 400
        _, lines = await harness.admin("GET", "/suite-results")
        assert {one["id"]: one["made"] for one in lines} == {"sres_0": 4, "sres_1": 4}
        _, shown = await harness.admin("GET", "/suite-results/sres_1")
        assert shown["summaries"][0]["success"]["mean"] == 1.0
        _, compared = await harness.admin("GET", "/suite-results/compare?candidate=sres_1&baseline=sres_0")
        assert (compared[0]["difference"]["mean"], compared[0]["only_first"]) == (1.0, 4)
