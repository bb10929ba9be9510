"""The initial schema.

Revision: 20261130_0001, the first.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261130_0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "audit_records",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_records")),
    )
    op.create_index(op.f("ix_audit_records_created_at"), "audit_records", ["created_at"], unique=False)
    op.create_table(
        "bases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_bases")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("policy", "version", name=op.f("uq_checkpoints_policy_version")),
    )
    op.create_table(
        "deployments",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("base", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployments")),
    )
    op.create_table(
        "domains",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_domains")),
    )
    op.create_table(
        "drafters",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("base", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_drafters")),
    )
    op.create_index(op.f("ix_drafters_base"), "drafters", ["base"], unique=False)
    op.create_table(
        "episode_groups",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_episode_groups")),
    )
    op.create_table(
        "episodes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("domain", sa.String(), nullable=True),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=True),
        sa.Column("group_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_episodes")),
    )
    op.create_index(op.f("ix_episodes_created_at_id"), "episodes", ["created_at", "id"], unique=False)
    op.create_index(op.f("ix_episodes_group_id"), "episodes", ["group_id"], unique=False)
    op.create_index(op.f("ix_episodes_policy_created_at"), "episodes", ["policy", "created_at"], unique=False)
    op.create_index(op.f("ix_episodes_status_created_at"), "episodes", ["status", "created_at"], unique=False)
    op.create_index(
        op.f("ix_episodes_tenant_id_created_at"), "episodes", ["tenant_id", "created_at"], unique=False
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
    )
    op.create_index(op.f("ix_evaluations_policy_version"), "evaluations", ["policy", "version"], unique=False)
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_experiments")),
    )
    op.create_index(op.f("ix_experiments_policy_status"), "experiments", ["policy", "status"], unique=False)
    op.create_table(
        "jobs",
        sa.Column(
            "sequence",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("run_after", sa.Double(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
    )
    op.create_index(op.f("ix_jobs_status_lease_until"), "jobs", ["status", "lease_until"], unique=False)
    op.create_index(
        "ix_jobs_status_priority_sequence",
        "jobs",
        ["status", sa.literal_column("priority DESC"), "sequence"],
        unique=False,
    )
    op.create_table(
        "lineage",
        sa.Column("checkpoint_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("checkpoint_id", "episode_id", name=op.f("pk_lineage")),
    )
    op.create_index(op.f("ix_lineage_episode_id"), "lineage", ["episode_id"], unique=False)
    op.create_table(
        "policies",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("base", sa.String(), nullable=False),
        sa.Column("last_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_policies")),
    )
    op.create_table(
        "releases",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("policy", "version", name=op.f("uq_releases_policy_version")),
    )
    op.create_table(
        "rewards",
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("episode_id", name=op.f("pk_rewards")),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("domain", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
    )
    op.create_index(op.f("ix_tasks_domain_split"), "tasks", ["domain", "split"], unique=False)
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_table(
        "training_runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_training_runs")),
    )
    op.create_index(
        op.f("ix_training_runs_policy_created_at"), "training_runs", ["policy", "created_at"], unique=False
    )
    op.create_table(
        "turns",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("choice", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("tokens", sa.LargeBinary(), nullable=True),
        sa.Column("tokens_blob", sa.String(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
        sa.UniqueConstraint(
            "tenant_id", "idempotency_key", "choice", name=op.f("uq_turns_tenant_id_idempotency_key_choice")
        ),
    )
    op.create_index(op.f("ix_turns_episode_id_index"), "turns", ["episode_id", "index"], unique=False)
    op.create_table(
        "verdicts",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
    )
    op.create_index(op.f("ix_verdicts_episode_id"), "verdicts", ["episode_id"], unique=False)
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_api_keys_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("key_hash", name=op.f("uq_api_keys_key_hash")),
    )
    op.create_index(op.f("ix_api_keys_tenant_id"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "assignments",
        sa.Column("experiment_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("arm", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_assignments_experiment_id")
        ),
        sa.PrimaryKeyConstraint("experiment_id", "key", name=op.f("pk_assignments")),
    )
    op.create_table(
        "policy_versions",
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("serving", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.name"], name=op.f("fk_policy_versions_policy")),
        sa.PrimaryKeyConstraint("policy", "version", name=op.f("pk_policy_versions")),
    )
    op.create_index(op.f("ix_policy_versions_serving"), "policy_versions", ["serving"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_index(op.f("ix_policy_versions_serving"), table_name="policy_versions")
    op.drop_table("policy_versions")
    op.drop_table("assignments")
    op.drop_index(op.f("ix_api_keys_tenant_id"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_index(op.f("ix_verdicts_episode_id"), table_name="verdicts")
    op.drop_table("verdicts")
    op.drop_index(op.f("ix_turns_episode_id_index"), table_name="turns")
    op.drop_table("turns")
    op.drop_index(op.f("ix_training_runs_policy_created_at"), table_name="training_runs")
    op.drop_table("training_runs")
    op.drop_table("tenants")
    op.drop_index(op.f("ix_tasks_domain_split"), table_name="tasks")
    op.drop_table("tasks")
    op.drop_table("rewards")
    op.drop_table("releases")
    op.drop_table("policies")
    op.drop_index(op.f("ix_lineage_episode_id"), table_name="lineage")
    op.drop_table("lineage")
    op.drop_index("ix_jobs_status_priority_sequence", table_name="jobs")
    op.drop_index(op.f("ix_jobs_status_lease_until"), table_name="jobs")
    op.drop_table("jobs")
    op.drop_index(op.f("ix_experiments_policy_status"), table_name="experiments")
    op.drop_table("experiments")
    op.drop_index(op.f("ix_evaluations_policy_version"), table_name="evaluations")
    op.drop_table("evaluations")
    op.drop_index(op.f("ix_episodes_tenant_id_created_at"), table_name="episodes")
    op.drop_index(op.f("ix_episodes_status_created_at"), table_name="episodes")
    op.drop_index(op.f("ix_episodes_policy_created_at"), table_name="episodes")
    op.drop_index(op.f("ix_episodes_group_id"), table_name="episodes")
    op.drop_index(op.f("ix_episodes_created_at_id"), table_name="episodes")
    op.drop_table("episodes")
    op.drop_table("episode_groups")
    op.drop_index(op.f("ix_drafters_base"), table_name="drafters")
    op.drop_table("drafters")
    op.drop_table("domains")
    op.drop_table("deployments")
    op.drop_table("checkpoints")
    op.drop_table("bases")
    op.drop_index(op.f("ix_audit_records_created_at"), table_name="audit_records")
    op.drop_table("audit_records")
