"""UnitOfWork: every repository on the connection of one transaction."""

from store.blobs import Blobs
from store.connection import Connection
from store.repositories.access import ApiKeys, AuditRecords, Tenants
from store.repositories.aliases import Aliases
from store.repositories.arm_outcomes import ArmOutcomes
from store.repositories.checkpoints import Checkpoints, Lineage
from store.repositories.deployments import Deployments
from store.repositories.domains import Domains
from store.repositories.drafters import Drafters
from store.repositories.episodes import EpisodeGroups, Episodes
from store.repositories.erasure import Erasure
from store.repositories.evaluations import Evaluations
from store.repositories.experiments import Assignments, Experiments
from store.repositories.feedback import FeedbackEntries
from store.repositories.fleet_plans import FleetPlans
from store.repositories.holdings import Holdings
from store.repositories.jobs import Jobs
from store.repositories.leases import Leases
from store.repositories.mined_tasks import MinedTasks
from store.repositories.policies import Bases, Policies
from store.repositories.policy_versions import PolicyVersions
from store.repositories.release_runs import ReleaseRuns
from store.repositories.releases import Releases
from store.repositories.sameness_checks import SamenessChecks
from store.repositories.shadow_pairs import ShadowPairs
from store.repositories.speculated_turns import SpeculatedTurns
from store.repositories.stored_completions import StoredCompletions
from store.repositories.stored_responses import StoredResponses
from store.repositories.suite_results import SuiteResults
from store.repositories.suites import Suites
from store.repositories.tasks import Tasks
from store.repositories.tombstones import Tombstones, Withdrawals
from store.repositories.training_runs import TrainingRuns
from store.repositories.turns import Turns
from store.repositories.usage import UsageCounters
from store.repositories.verdicts import Rewards, Verdicts


class UnitOfWork:
    """What one transaction can read and change; it ends with the ``async with`` block that made it."""

    def __init__(self, connection: Connection, *, blobs: Blobs, inline_bytes: int) -> None:
        self.tasks = Tasks(connection)
        self.mined = MinedTasks(connection)
        self.suites = Suites(connection)
        self.suite_results = SuiteResults(connection)
        self.domains = Domains(connection)
        self.episodes = Episodes(connection)
        self.groups = EpisodeGroups(connection)
        self.turns = Turns(connection, blobs=blobs, inline_bytes=inline_bytes)
        self.verdicts = Verdicts(connection)
        self.rewards = Rewards(connection)
        self.bases = Bases(connection)
        self.policies = Policies(connection)
        self.aliases = Aliases(connection)
        self.versions = PolicyVersions(connection)
        self.checkpoints = Checkpoints(connection)
        self.lineage = Lineage(connection)
        self.deployments = Deployments(connection)
        self.releases = Releases(connection)
        self.release_runs = ReleaseRuns(connection)
        self.evaluations = Evaluations(connection)
        self.experiments = Experiments(connection)
        self.assignments = Assignments(connection)
        self.arm_outcomes = ArmOutcomes(connection)
        self.shadow_pairs = ShadowPairs(connection)
        self.drafters = Drafters(connection)
        self.tenants = Tenants(connection)
        self.api_keys = ApiKeys(connection)
        self.audit = AuditRecords(connection)
        self.usage = UsageCounters(connection)
        self.runs = TrainingRuns(connection)
        self.jobs = Jobs(connection)
        self.leases = Leases(connection)
        self.fleet_plans = FleetPlans(connection)
        self.stored_responses = StoredResponses(connection)
        self.stored_completions = StoredCompletions(connection)
        self.feedback = FeedbackEntries(connection)
        self.tombstones = Tombstones(connection)
        self.withdrawals = Withdrawals(connection)
        self.erasure = Erasure(connection)
        self.holdings = Holdings(connection)
        self.sameness = SamenessChecks(connection)
        self.speculated = SpeculatedTurns(connection, self.turns)
