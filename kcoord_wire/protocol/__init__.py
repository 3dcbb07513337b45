"""Kafka's tables and rules that are neither bytes nor state: API keys, error codes, the partition of a key.

To add an error code: a row of `error_codes.ErrorCode`; what a consumer does about it: `forensics.refusal_advice`.
"""
