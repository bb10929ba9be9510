"""Table definitions, one file for each noun; importing this package completes ``METADATA``."""

from store.tables.aliases import ALIASES
from store.tables.api_keys import API_KEYS
from store.tables.arm_outcomes import ARM_OUTCOMES
from store.tables.asked_prompts import ASKED_PROMPTS
from store.tables.assignments import ASSIGNMENTS
from store.tables.audit_records import AUDIT_RECORDS
from store.tables.bases import BASES
from store.tables.checkpoints import CHECKPOINTS
from store.tables.deployments import DEPLOYMENTS
from store.tables.domains import DOMAINS
from store.tables.drafters import DRAFTERS
from store.tables.episode_groups import EPISODE_GROUPS
from store.tables.episodes import EPISODES
from store.tables.evaluations import EVALUATIONS
from store.tables.experiments import EXPERIMENTS
from store.tables.feedback import FEEDBACK
from store.tables.fleet_plans import FLEET_PLANS
from store.tables.jobs import JOBS
from store.tables.leases import LEASES
from store.tables.lineage import LINEAGE
from store.tables.metadata import METADATA
from store.tables.mined_tasks import MINED_TASKS
from store.tables.policies import POLICIES
from store.tables.policy_versions import POLICY_VERSIONS
from store.tables.release_runs import RELEASE_RUNS
from store.tables.releases import RELEASES
from store.tables.rewards import REWARDS
from store.tables.sameness_checks import SAMENESS_CHECKS
from store.tables.shadow_pairs import SHADOW_PAIRS
from store.tables.shadow_skips import SHADOW_SKIPS
from store.tables.stored_completions import STORED_COMPLETION_METADATA, STORED_COMPLETIONS
from store.tables.stored_responses import STORED_RESPONSES
from store.tables.suite_results import SUITE_RESULTS
from store.tables.suites import SUITES
from store.tables.tasks import TASKS
from store.tables.tenants import TENANTS
from store.tables.tombstones import TOMBSTONES, WITHDRAWALS
from store.tables.training_runs import TRAINING_RUNS
from store.tables.turns import TURNS
from store.tables.usage import USAGE
from store.tables.verdicts import VERDICTS

__all__ = (
    "ALIASES",
    "API_KEYS",
    "ARM_OUTCOMES",
    "ASKED_PROMPTS",
    "ASSIGNMENTS",
    "AUDIT_RECORDS",
    "BASES",
    "CHECKPOINTS",
    "DEPLOYMENTS",
    "DOMAINS",
    "DRAFTERS",
    "EPISODES",
    "EPISODE_GROUPS",
    "EVALUATIONS",
    "EXPERIMENTS",
    "FEEDBACK",
    "FLEET_PLANS",
    "JOBS",
    "LEASES",
    "LINEAGE",
    "METADATA",
    "MINED_TASKS",
    "POLICIES",
    "POLICY_VERSIONS",
    "RELEASES",
    "RELEASE_RUNS",
    "REWARDS",
    "SAMENESS_CHECKS",
    "SHADOW_PAIRS",
    "SHADOW_SKIPS",
    "STORED_COMPLETIONS",
    "STORED_COMPLETION_METADATA",
    "STORED_RESPONSES",
    "SUITES",
    "SUITE_RESULTS",
    "TASKS",
    "TENANTS",
    "TOMBSTONES",
    "TRAINING_RUNS",
    "TURNS",
    "USAGE",
    "VERDICTS",
    "WITHDRAWALS",
)
