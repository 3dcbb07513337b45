"""What state machines and their hosts stand on: events, timers, procedures, disks, addresses, peers, HTTP, metrics.

Nothing here knows a protocol. How a setting is declared, checked, read and shown: `settings`.
"""
