"""Incidents on real Kafka brokers with real clients and real faults, labelled by what was done, and the judgement of
what the report says first.
"""
