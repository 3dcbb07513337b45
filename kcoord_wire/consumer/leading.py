"""What the leader of a generation computes for the group.

Laws:

* `assign` is pure, as far as the assignor is; a host may run it in another thread, on its own time.
* `assign_checked` returns an assignment only if it gives every partition to one member at most, and only to members
  that subscribe to it: what an assignor has made of its input reaches the group never otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcoord_wire.assignors import MemberAssignment
from kcoord_wire.assignors.rules import check_assignment
from kcoord_wire.consumer.events import Assigning
from kcoord_wire.consumer.failures import AssignmentError


def assign(task: Assigning) -> dict[str, MemberAssignment]:
    """Return what each member gets, by member id. Errors of the assignor pass through."""
    assignment = task.assignor.assign(task.partitions, task.subscriptions, task.racks)
    user_data: Mapping[str, bytes] = {}
    if task.assignor.assignment_user_data is not None:
        user_data = task.assignor.assignment_user_data(task.partitions, task.subscriptions, assignment)
    return {
        member_id: MemberAssignment(partitions, user_data.get(member_id, b""))
        for member_id, partitions in assignment.items()
    }


def assign_checked(task: Assigning) -> dict[str, MemberAssignment]:
    """Return what each member gets, by member id.

    :raises AssignmentError: the assignor has failed, or its assignment must not be sent
    """
    name = task.assignor.name
    try:
        assigned = assign(task)
    except Exception as error:  # a plug-in may raise anything
        raise AssignmentError(name, f"{type(error).__name__}: {error}") from error
    found = check_assignment(
        {member_id: each.partitions for member_id, each in assigned.items()},
        task.partitions,
        task.subscriptions,
        task.assignor.protocol,
    )
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise AssignmentError(name, f"its assignment is not valid: {found[0]}{more}")
    return assigned
