"""Kafka's tables and rules that are neither bytes nor state: API keys, error codes, the partition of a key."""
