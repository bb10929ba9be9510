"""Engines, the routing table, hot-swap with probes, and the fleet that keeps Deployments as they shall be."""
