"""AuditRecords of what a command does on this machine's files, past the admin API."""

from collections.abc import Mapping

from core import ids
from core.access import AuditRecord

LOCAL = "local"
"""In place of Tenant and key: whoever may run commands on this machine."""


def local_record(action: str, subject: str, detail: Mapping[str, object]) -> AuditRecord:
    """To be added in the transaction of the deed, or after it."""
    return AuditRecord(
        id=ids.new_id(ids.AUDIT), tenant_id=LOCAL, key_id=LOCAL, action=action, subject=subject, detail=dict(detail)
    )
