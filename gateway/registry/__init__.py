"""Names, notes, lineage, signatures and retention of PolicyVersions."""
