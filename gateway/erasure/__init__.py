"""Withdrawal of Episodes, erasure of Tenants, and the export of what is held about one."""
