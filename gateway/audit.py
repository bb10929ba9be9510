"""AuditRecords of administrative writes."""

from collections.abc import Mapping

from core import ids
from core.access import ApiKey, AuditRecord


def audit_record(key: ApiKey, action: str, subject: str, detail: Mapping[str, object] | None = None) -> AuditRecord:
    """What ``key`` did to ``subject``, to be added in the same transaction as the deed."""
    return AuditRecord(
        id=ids.new_id(ids.AUDIT),
        tenant_id=key.tenant_id,
        key_id=key.id,
        action=action,
        subject=subject,
        detail=dict(detail or {}),
    )
