"""Rankers order one window; they know no strategy, no queue and no RPC."""
